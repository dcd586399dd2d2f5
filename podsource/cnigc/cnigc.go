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

// The keys of a GC request. The first is that of the CNI 1.1 specification
// (SPEC.md, section 2, "GC"). libcni sends the second one with the same content,
// for plugins that follow an earlier draft (containernetworking/cni#1101).
const (
	valid  = "cni.dev/valid-attachments"
	valid0 = "cni.dev/attachments"
)

// name matches the container IDs and the names of networks that CNI allows (SPEC.md,
// section 2, "Parameters", and section 1).
var name = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// DefaultMaxAge is less than the lowest minimum age that is possible if only the request
// names holders (R5). So reservations made after the request are still young when the
// request expires.
const DefaultMaxAge = 2 * time.Minute

// Options set how long a request is valid. The zero value is the safe default.
type Options struct {
	// MaxAge is how long the request is valid after [New]. It does not name later
	// attachments, so set more than two minutes only if no ADD begins in that
	// time. Zero is [DefaultMaxAge]; it must not be negative.
	MaxAge time.Duration
}

// A Source is a GC request. Make one for each request.
type Source struct {
	opts   Options
	made   time.Time
	answer podsource.Answer
}

// New returns a source of the attachments that a GC request lists as valid. request is the
// plugin's standard input, and must have been read just before. The source declares that
// the list names every live container of the request's network, and that none is live if
// the list is null or empty (R4, R9, R14). It does not declare that for later reservations.
// If the request has both keys, an attachment in either list is valid.
//
// It is an error if the request has no list, no name of its network, or is not a complete
// and unambiguous JSON object, or if an attachment has no container ID (R2). libcni leaves
// out the list if its caller passes no arguments. Unknown keys of the request and of its
// attachments are ignored.
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
		Names: podsource.AnyContainer, AtOnce: true,
		Pods: make([]podsource.Pod, len(ids)),
		Gaps: []podsource.Gap{{From: made.Round(0)}},
	}
	for i, id := range ids {
		a.Pods[i].ContainerIDs = []string{id}
	}
	return &Source{opts: opts, made: made, answer: a}, nil
}

// Pods returns one pod for each container with a valid attachment. It does not wait. If
// the request is older than Options.MaxAge, it returns an error (hazard 62).
func (s *Source) Pods(context.Context) (podsource.Answer, error) {
	if age := time.Since(s.made); age > s.opts.MaxAge {
		return podsource.Answer{Source: s.answer.Source}, fmt.Errorf("the CNI GC request for network %s is %v old, and counts for %v; "+
			"make a source of each request", s.answer.Networks[0], age.Round(time.Second), s.opts.MaxAge)
	}
	return s.answer, nil
}

// Network returns the network of the request, which is the only one that the source
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
		return "", nil, fmt.Errorf("it has no %q, the list of valid attachments", valid)
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
	_ = json.Unmarshal(raw, &s) // s is empty if raw is not a string, and so does not match
	if !name.MatchString(s) {
		return "", fmt.Errorf("its %s is %s, which CNI does not allow", key, raw)
	}
	return s, nil
}

// object returns the wanted fields of a JSON object. Unlike json.Unmarshal with a struct, it
// compares letter case, and returns an error if one of them is there twice.
func object(content []byte, wanted ...string) (fields map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(content, &fields); err != nil {
		return nil, fmt.Errorf("it is not a JSON object: %w", err)
	}
	if fields == nil {
		return nil, errors.New("it is not a JSON object, but null")
	}
	maps.DeleteFunc(fields, func(key string, _ json.RawMessage) bool { return !slices.Contains(wanted, key) })
	seen := make(map[json.Token]bool)
	d := json.NewDecoder(bytes.NewReader(content)) // content is valid, so it returns no error
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
