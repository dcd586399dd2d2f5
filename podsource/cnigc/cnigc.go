// SPDX-License-Identifier: Apache-2.0

// Package cnigc makes a pod source of a CNI GC request: the attachments that the
// runtime calls still valid.
//
// The list is that of the network that the request names, so it is for that
// network's reservations only. As reservations are matched by container ID, a
// container that is valid by one of its interfaces keeps what all of them hold,
// which is stricter than GC demands. Owners that old versions of host-local
// wrote, of a container ID alone, match like any other.
//
// The CNI specification lets no ADD be in flight during a GC. Whoever trusts the
// runtime in this may set gc.NoADDInFlight; otherwise what is younger than the
// minimum age waits for the next GC.
package cnigc

import (
	"bytes"
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

// containerID is what CNI allows as one (SPEC.md, section 2, "Parameters").
var containerID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// FromConfig returns the attachments that a GC request calls valid; stdin is
// what the plugin was given there. With null or an empty list nothing is valid,
// and the source vouches for that (R9). Where both keys are there, an attachment
// in either list is valid.
//
// A request without the list is an error, as is one that is not a whole and
// unambiguous JSON object, or an attachment without a container ID (R2). libcni
// leaves out the list when its caller gives no arguments at all. Keys that are
// not known mean nothing, in the request and in its attachments.
func FromConfig(stdin []byte) (podsource.Source, error) {
	ids, err := validIDs(stdin)
	if err != nil {
		return nil, fmt.Errorf("reading a CNI GC request: %w", err)
	}
	pods := make([]podsource.Pod, len(ids))
	for i, id := range ids {
		pods[i].ContainerIDs = []string{id}
	}
	return podsource.Static(podsource.Vouched(pods)), nil
}

// validIDs returns the container IDs of a request, each once.
func validIDs(stdin []byte) (ids []string, err error) {
	request, err := object(stdin, valid, valid0)
	if err != nil {
		return nil, err
	}
	if len(request) == 0 {
		return nil, fmt.Errorf("it has no %q, so it does not say what is valid", valid)
	}
	for key, raw := range request {
		var attachments []json.RawMessage
		if err := json.Unmarshal(raw, &attachments); err != nil {
			return nil, fmt.Errorf("%q: %w", key, err)
		}
		for i, a := range attachments {
			id, err := idOf(a)
			if err != nil {
				return nil, fmt.Errorf("%q: attachment %d: %w", key, i+1, err)
			}
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// idOf returns the container ID of one attachment.
func idOf(attachment []byte) (id string, err error) {
	fields, err := object(attachment, "containerID")
	if err != nil {
		return "", err
	}
	raw, ok := fields["containerID"]
	if !ok {
		return "", errors.New("it has no containerID")
	}
	if err := json.Unmarshal(raw, &id); err != nil {
		return "", fmt.Errorf("its containerID: %w", err)
	}
	if !containerID.MatchString(id) {
		return "", fmt.Errorf("%q is not a container ID as CNI allows it", id)
	}
	return id, nil
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
