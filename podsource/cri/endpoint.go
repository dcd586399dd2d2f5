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
	namedBy string // what names it in a search; empty is a guess
}

func (e endpoint) same(other endpoint) bool { return e.address == other.address }

// String is for errors.
func (e endpoint) String() string {
	if e.namedBy == "" {
		return e.name
	}
	return fmt.Sprintf("%s (so %s says)", e.name, e.namedBy)
}

// DefaultEndpoints returns where container runtimes listen unless they are told
// otherwise, in the order in which they are asked: containerd, CRI-O and
// cri-dockerd, which is where kubelet and crictl look, too; those of k3s, which
// RKE2 shares; of k0s, with the place in which its older versions had it; and of
// MicroK8s.
func DefaultEndpoints() []string {
	if runtime.GOOS == "windows" {
		return []string{"npipe:////./pipe/containerd-containerd", "npipe:////./pipe/cri-dockerd"}
	}
	return []string{
		"unix:///run/containerd/containerd.sock",
		"unix:///run/crio/crio.sock",
		"unix:///run/cri-dockerd.sock",
		"unix:///run/k3s/containerd/containerd.sock",
		"unix:///run/k3s/cri-dockerd/cri-dockerd.sock",
		"unix:///run/k0s/containerd.sock",
		"unix:///var/lib/k0s/run/containerd.sock",
		"unix:///var/snap/microk8s/common/run/containerd.sock",
	}
}

// parseEndpoint reads unix:///path, /path, and npipe:////./pipe/name.
func parseEndpoint(name string) (endpoint, error) {
	if pipe, ok := strings.CutPrefix(name, "npipe:"); ok {
		p := path.Clean("/" + strings.ReplaceAll(pipe, `\`, "/"))
		if base, ok := strings.CutPrefix(p, "/pipe/"); ok && base != "" {
			return endpoint{name, `\\.\pipe\` + strings.ReplaceAll(base, "/", `\`), true, ""}, nil
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
	return endpoint{"unix://" + p, p, false, ""}, nil
}
