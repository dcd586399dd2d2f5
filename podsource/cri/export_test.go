// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"os"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Among returns a source that searches with these sockets as the default endpoints.
func Among(opts Options, paths ...string) (*Source, error) {
	opts.CrictlConfig = cmp.Or(opts.CrictlConfig, os.DevNull) // not that of the machine
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

// PodsOf converts the answer of a runtime.
func PodsOf(items []*runtimeapi.PodSandbox, statuses []*runtimeapi.PodSandboxStatus) ([]podsource.Pod, error) {
	return podsOf(items, statuses)
}

// ParseEndpoint returns an endpoint's name and address.
func ParseEndpoint(name string) (string, string, error) {
	e, err := parseEndpoint(name)
	return e.name, e.address, err
}

// RuntimeEndpoint returns the endpoint in crictl's configuration.
func RuntimeEndpoint(text string) (string, error) { return runtimeEndpoint(text) }
