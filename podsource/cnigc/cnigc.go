// SPDX-License-Identifier: Apache-2.0

// Package cnigc makes a pod source of a CNI GC request: the attachments that the
// runtime calls still valid.
//
// The list is that of the network that the request names, and the source speaks
// of that network alone: in another one nothing is released on its word, whatever
// networks the reconciler has (hazard 74). As reservations are matched by
// container ID, a container that is valid by one of its interfaces keeps what all
// of them hold, which is stricter than GC demands. Owners that old versions of
// host-local wrote, of a container ID alone, match like any other.
//
// The CNI specification lets no ADD be in flight during a GC. A pass does not rely
// on that: what is younger than the minimum age waits for the next one. The hook's
// assertion, gc.NoADDInFlight, is for who serves the ADDs and has not begun to. It
// is not for answering a request.
package cnigc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The keys of a GC request. The specification of CNI 1.1 has the first
// (SPEC.md, section 2, "GC"). libcni sends the second one with the same content,
// for plugins that followed an earlier wording (containernetworking/cni#1101).
const (
	valid  = "cni.dev/valid-attachments"
	valid0 = "cni.dev/attachments"
)

// name is what CNI allows as a container ID and as the name of a network (SPEC.md,
// section 2, "Parameters", and section 1).
var name = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// FromConfig returns the attachments that a GC request calls valid; stdin is
// what the plugin was given there. Every container of that network that lives is
// among them, and where the list is null or empty none does: the source declares
// both (R4, R9, R14). Where both keys are there, an attachment in either list is
// valid.
//
// A request without the list is an error, as is one without the name of its
// network, one that is not a whole and unambiguous JSON object, or an attachment
// without a container ID (R2). libcni leaves out the list when its caller gives no
// arguments at all. Keys that are not known mean nothing, in the request and in
// its attachments.
func FromConfig(stdin []byte) (podsource.Source, error) {
	network, ids, err := read(stdin)
	if err != nil {
		return nil, fmt.Errorf("reading a CNI GC request: %w", err)
	}
	networks := []string{network}
	a := podsource.Answer{
		Source: "cnigc", Networks: networks, Authoritative: true,
		Names: []podsource.Names{{Form: podsource.AnyForm, Networks: networks}},
		Pods:  make([]podsource.Pod, len(ids)),
	}
	for i, id := range ids {
		a.Pods[i].ContainerIDs = []string{id}
	}
	return podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return a, nil }), nil
}

// read returns the network of a request, and its container IDs, each once.
func read(stdin []byte) (network string, ids []string, err error) {
	request, err := object(stdin, "name", valid, valid0)
	if err != nil {
		return "", nil, err
	}
	if network, err = nameIn(request, "name"); err != nil {
		return "", nil, err
	}
	delete(request, "name")
	if len(request) == 0 {
		return "", nil, fmt.Errorf("it has no %q, so it does not say what is valid", valid)
	}
	for key, raw := range request {
		var attachments []json.RawMessage
		if err := json.Unmarshal(raw, &attachments); err != nil {
			return "", nil, fmt.Errorf("%q: %w", key, err)
		}
		for i, a := range attachments {
			fields, err := object(a, "containerID")
			if err != nil {
				return "", nil, fmt.Errorf("%q: attachment %d: %w", key, i+1, err)
			}
			id, err := nameIn(fields, "containerID")
			if err != nil {
				return "", nil, fmt.Errorf("%q: attachment %d: %w", key, i+1, err)
			}
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return network, slices.Compact(ids), nil
}

// nameIn returns the field of an object that has a name as CNI allows it.
func nameIn(fields map[string]json.RawMessage, key string) (s string, err error) {
	raw, ok := fields[key]
	if !ok {
		return "", fmt.Errorf("it has no %s", key)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("its %s: %w", key, err)
	}
	if !name.MatchString(s) {
		return "", fmt.Errorf("its %s is %q, which CNI does not allow", key, s)
	}
	return s, nil
}

// object returns the wanted fields of a JSON object. Unlike json.Unmarshal it
// takes their names exactly, and none twice: which of two lists is meant?
func object(content []byte, wanted ...string) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(content))
	if t, err := d.Token(); err != nil {
		return nil, whole(err)
	} else if t != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	fields := make(map[string]json.RawMessage)
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, whole(err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, whole(err)
		}
		k, _ := key.(string) // the decoder gives nothing else as a key
		if !slices.Contains(wanted, k) {
			continue
		}
		if _, twice := fields[k]; twice {
			return nil, fmt.Errorf("it has %q twice", k)
		}
		fields[k] = value
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, whole(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows its end")
	}
	return fields, nil
}

// whole says what the end of the data means here.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
