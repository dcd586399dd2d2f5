// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// An endpoint is the address on which a runtime listens.
type endpoint struct {
	name    string // for people: the endpoint as it was given, or unix:// and the path
	address string // the path of a socket, or the name of a pipe
	pipe    bool   // a named pipe of Windows
	named   bool   // in a search: it is not one of the defaults
}

// same reports whether two endpoints have one socket, for example if /var/run is a link to /run.
func (e endpoint) same(other endpoint) bool { return e.resolved() == other.resolved() }

func (e endpoint) resolved() string {
	path, err := filepath.EvalSymlinks(e.address)
	if err != nil {
		return e.address // the error of connecting says more
	}
	return path
}

// DefaultEndpoints returns the default endpoints of container runtimes, in the order in which
// they are asked: those of containerd, CRI-O and cri-dockerd, which kubelet and crictl use, too;
// of k3s and RKE2, which share them; of k0s, with that of its older versions; and of MicroK8s.
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

// parseEndpoint parses unix:///path, /path, and npipe:////./pipe/name.
func parseEndpoint(name string) (endpoint, error) {
	if pipe, ok := strings.CutPrefix(name, "npipe:"); ok {
		p := path.Clean("/" + strings.ReplaceAll(pipe, `\`, "/"))
		if base, ok := strings.CutPrefix(p, "/pipe/"); ok && base != "" {
			return endpoint{name, `\\.\pipe\` + strings.ReplaceAll(base, "/", `\`), true, false}, nil
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
	return endpoint{"unix://" + p, p, false, false}, nil
}
