// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Among returns a source that searches with these sockets as the default endpoints.
func Among(opts Options, paths ...string) (*Source, error) {
	opts.CrictlConfig = cmp.Or(opts.CrictlConfig, "none.yaml") // not that of the machine
	s, err := New("", opts)
	s.endpoints = nil
	for _, path := range paths {
		e, err := parseEndpoint(path)
		if err != nil {
			return nil, err
		}
		s.endpoints = append(s.endpoints, e)
	}
	return s, err
}

var RuntimeEndpoint = runtimeEndpoint

// AddStatuses adds to each pod what the status of its sandbox says, and returns the note.
func AddStatuses(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, pods []podsource.Pod) string {
	return noteOn(pods, addStatuses(ctx, runtime, pods))
}

// Address returns the address of an endpoint.
func Address(name string) (string, error) {
	e, err := parseEndpoint(name)
	return e.address, err
}
