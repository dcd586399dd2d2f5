// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"path"
	"runtime"
	"strings"
)

// An endpoint is where a runtime listens.
type endpoint struct {
	name    string // as people write it
	address string // the path of a socket, or the name of a pipe
	pipe    bool   // of Windows
}

// DefaultEndpoints returns where containerd, CRI-O and cri-dockerd listen unless
// they are told otherwise, in the order in which they are asked. kubelet and
// crictl look in the same places.
func DefaultEndpoints() []string {
	if runtime.GOOS == "windows" {
		return []string{"npipe:////./pipe/containerd-containerd", "npipe:////./pipe/cri-dockerd"}
	}
	return []string{
		"unix:///run/containerd/containerd.sock",
		"unix:///run/crio/crio.sock",
		"unix:///run/cri-dockerd.sock",
	}
}

// parseEndpoint reads unix:///path, /path, and npipe:////./pipe/name.
func parseEndpoint(name string) (endpoint, error) {
	if pipe, ok := strings.CutPrefix(name, "npipe:"); ok {
		p := path.Clean("/" + strings.ReplaceAll(pipe, `\`, "/"))
		if base, ok := strings.CutPrefix(p, "/pipe/"); ok && base != "" {
			return endpoint{name, `\\.\pipe\` + strings.ReplaceAll(base, "/", `\`), true}, nil
		}
		return endpoint{}, fmt.Errorf("endpoint %q is not the name of a pipe, as in npipe:////./pipe/containerd-containerd", name)
	}
	p, ok := strings.CutPrefix(name, "unix://")
	if !ok {
		p = name
	}
	if !path.IsAbs(p) || strings.ContainsRune(p, 0) {
		return endpoint{}, fmt.Errorf("endpoint %q is not the path of a socket, as in unix:///run/containerd/containerd.sock", name)
	}
	return endpoint{"unix://" + p, p, false}, nil
}
