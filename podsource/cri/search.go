// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"sigs.k8s.io/yaml"
)

// endpointVariable is the environment variable with the runtime's endpoint. Like crictl, a
// search prefers it to the configuration.
const endpointVariable = "CONTAINER_RUNTIME_ENDPOINT"

// candidates returns the endpoints to ask. In a search these are the named endpoint, the
// defaults, and those that have answered before.
func (s *Source) candidates() ([]endpoint, error) {
	if !s.search {
		return s.endpoints, nil
	}
	all, err := s.named()
	if err != nil {
		return nil, err
	}
	for _, e := range slices.Concat(s.endpoints, s.answered) {
		if !slices.ContainsFunc(all, e.same) {
			all = append(all, e)
		}
	}
	return all, nil
}

// named returns the endpoint that is configured for crictl, if there is one.
func (s *Source) named() ([]endpoint, error) {
	by, name := "$"+endpointVariable, os.Getenv(endpointVariable)
	if name == "" {
		by = s.opts.CrictlConfig
		text, err := os.ReadFile(by)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading crictl's configuration: %w", err)
		}
		if name, err = runtimeEndpoint(text); err != nil {
			return nil, fmt.Errorf("reading crictl's configuration %s: %w; correct it, or name the runtime's endpoint", by, err)
		}
	}
	if name == "" {
		return nil, nil
	}
	e, err := parseEndpoint(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", by, err)
	}
	e.name, e.named = fmt.Sprintf("%s (so %s says)", e.name, by), true
	return []endpoint{e}, nil
}

// runtimeEndpoint returns the endpoint in crictl's configuration, or "" if it has none. One that can't
// be parsed may name the node's runtime.
func runtimeEndpoint(text []byte) (string, error) {
	config := make(map[string]any)
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		return "", err
	}
	const key = "runtime-endpoint"
	name, isText := config[key].(string)
	if config[key] != nil && !isText {
		return "", fmt.Errorf("%s is %v, which is no text", key, config[key])
	}
	return name, nil
}
