// SPDX-License-Identifier: Apache-2.0

package cri

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Among returns a source that searches among these sockets.
func Among(opts Options, paths ...string) (*Source, error) {
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

// MaxAnswer is the most that one answer may have.
const MaxAnswer = maxAnswer

// PodsOf makes pods of an answer.
func PodsOf(items []*runtimeapi.PodSandbox, statuses []*runtimeapi.PodSandboxStatus) ([]podsource.Pod, error) {
	return podsOf(items, statuses)
}

// ParseEndpoint returns an endpoint's name and address.
func ParseEndpoint(name string) (string, string, error) {
	e, err := parseEndpoint(name)
	return e.name, e.address, err
}
