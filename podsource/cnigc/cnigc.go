// SPDX-License-Identifier: Apache-2.0

package cnigc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

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

// DefaultMaxAge is less than the minimum age of a reservation can be where only
// the request names its holder: what was reserved after the request is young as
// long as the request counts (R5).
const DefaultMaxAge = 2 * time.Minute

// Options say for how long a request counts. The zero value is the safe default.
type Options struct {
	// MaxAge is how long after [New] the request is taken for true. What was
	// attached since is not in it, so one for longer than two minutes is for who
	// lets no ADD begin meanwhile. Zero is [DefaultMaxAge]; it must not be negative.
	MaxAge time.Duration
}

// A Source is a GC request. Make one for each request.
type Source struct {
	opts   Options
	made   time.Time
	answer podsource.Answer
}

// New returns the attachments that a GC request calls valid; request is what the
// plugin was given on its standard input, just before. Every container of that
// network that lives is among them, and where the list is null or empty none does:
// the source declares both (R4, R9, R14), but not for what was reserved since. Where both keys are there, an attachment
// in either list is valid.
//
// A request without the list is an error, as is one without the name of its
// network, one that is not a whole and unambiguous JSON object, or an attachment
// without a container ID (R2). libcni leaves out the list when its caller gives no
// arguments at all. Keys that are not known mean nothing, in the request and in
// its attachments.
func New(request []byte, opts Options) (*Source, error) {
	if opts.MaxAge < 0 {
		return nil, fmt.Errorf("reading a CNI GC request: MaxAge is %v; it must not be negative", opts.MaxAge)
	}
	opts.MaxAge = cmp.Or(opts.MaxAge, DefaultMaxAge)
	network, ids, err := read(request)
	if err != nil {
		return nil, fmt.Errorf("reading a CNI GC request: %w", err)
	}
	networks := []string{network}
	made := time.Now()
	a := podsource.Answer{
		Source: "cnigc", Networks: networks, Authoritative: true,
		Names: []podsource.Names{{Form: podsource.AnyForm, Networks: networks}},
		Pods:  make([]podsource.Pod, len(ids)),
		Gaps:  []podsource.Gap{{From: made.Round(0)}},
	}
	for i, id := range ids {
		a.Pods[i].ContainerIDs = []string{id}
	}
	return &Source{opts: opts, made: made, answer: a}, nil
}

// Pods returns one pod for each container with a valid attachment. It waits for
// nothing. A request that is older than Options.MaxAge is an error: ask for
// another one (hazard 62).
func (s *Source) Pods(context.Context) (podsource.Answer, error) {
	if age := time.Since(s.made); age > s.opts.MaxAge {
		return podsource.Answer{Source: s.answer.Source}, fmt.Errorf("the CNI GC request for network %s is %v old, and counts for %v; "+
			"make a source of each request", s.answer.Networks[0], age.Round(time.Second), s.opts.MaxAge)
	}
	return s.answer, nil
}

// Network returns the network that the request names, the only one that the source
// speaks of.
func (s *Source) Network() string { return s.answer.Networks[0] }

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
	_ = json.Unmarshal(raw, &s) // what is no string is no name either
	if !name.MatchString(s) {
		return "", fmt.Errorf("its %s is %s, which CNI does not allow", key, raw)
	}
	return s, nil
}

// object returns the wanted fields of a JSON object. Unlike a struct for json.Unmarshal
// it takes their names exactly, and none twice: which of two lists is meant?
func object(content []byte, wanted ...string) (fields map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(content, &fields); err != nil {
		return nil, fmt.Errorf("it is not a JSON object: %w", err)
	}
	if fields == nil {
		return nil, errors.New("it is not a JSON object, but null")
	}
	maps.DeleteFunc(fields, func(key string, _ json.RawMessage) bool { return !slices.Contains(wanted, key) })
	seen := make(map[json.Token]bool)
	d := json.NewDecoder(bytes.NewReader(content)) // which meets no error any more
	_, _ = d.Token()
	for d.More() {
		key, _ := d.Token()
		if k, _ := key.(string); seen[key] && slices.Contains(wanted, k) {
			return nil, fmt.Errorf("it has %q twice", key)
		}
		seen[key] = true
		var value json.RawMessage
		_ = d.Decode(&value)
	}
	return fields, nil
}
