// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
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
	s.mu.Lock()
	defer s.mu.Unlock()
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
		if name, err = runtimeEndpoint(string(text)); err != nil {
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
	e.namedBy = by
	return []endpoint{e}, nil
}

const endpointKey = "runtime-endpoint"

// endpointLine matches a line of YAML with the key, an optional plain or quoted value, and an
// optional comment.
var endpointLine = regexp.MustCompile(`^\s*["']?` + endpointKey + `["']?\s*:(?:\s+(?:"([^"\\]*)"|'([^']*)'|([^\s"'#]\S*)))?\s*(?:\s#.*)?$`)

// runtimeEndpoint returns the endpoint in crictl's configuration, which is a flat map in YAML,
// or "" if it has none. A line with the key that can't be parsed is an error, since it may name
// the node's runtime.
func runtimeEndpoint(text string) (string, error) {
	if strings.ContainsRune(text, 0) {
		return "", errors.New("it is not UTF-8")
	}
	found, name, above := false, "", -1 // above: the indentation of a key whose value may continue
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		content, _, _ := strings.Cut(line, "#")
		if strings.TrimSpace(content) == "" {
			continue
		}
		if above >= 0 && indent(content) > above {
			return "", fmt.Errorf("the value of %s continues in %q; it must be on one line", endpointKey, line)
		}
		if above = -1; !strings.Contains(content, endpointKey) {
			continue
		}
		above = indent(content)
		m := endpointLine.FindStringSubmatch(line)
		if m == nil {
			return "", fmt.Errorf("%q can't be parsed; it must be one line such as %s: unix:///run/containerd/containerd.sock", line, endpointKey)
		}
		if found {
			return "", fmt.Errorf("it has %s twice", endpointKey)
		}
		found, name = true, m[1]+m[2]+m[3]
	}
	return name, nil
}

func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " \t")) }

// socketOf returns the socket of an endpoint, and whether it is not yet in asked. Two endpoints
// may have the same socket, for example if /var/run is a link to /run.
func socketOf(e endpoint, asked []os.FileInfo) (socket os.FileInfo, isNew bool) {
	if e.pipe {
		return nil, true
	}
	socket, err := os.Stat(e.address)
	if err != nil {
		return nil, true // the error of connecting says more
	}
	return socket, !slices.ContainsFunc(asked, func(other os.FileInfo) bool { return other != nil && os.SameFile(socket, other) })
}
