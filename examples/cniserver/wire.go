// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// The plugin sends each CNI request as an HTTP POST to the server's unix socket. The
// answer is 200 with the result, or 500 with a CNI error (types.Error). An answer from 400 on
// without a CNI error is one of HTTP itself.
const (
	defaultSocket = "/run/cniserver/cniserver.sock"
	requestPath   = "/cni"
	// maxRequest is the maximum size of a request in bytes. A GC request with a thousand
	// attachments has a tenth of it.
	maxRequest = 1 << 20
)

// A request has the environment variables and the stdin of a plugin.
type request struct {
	Command     string          `json:"command"`
	ContainerID string          `json:"containerID,omitempty"`
	NetNS       string          `json:"netns,omitempty"`
	IfName      string          `json:"ifName,omitempty"`
	Args        string          `json:"args,omitempty"`
	Path        string          `json:"path"`
	Config      json.RawMessage `json:"config"`
}

// key is that of the request's attachment.
func (r *request) key(network string) checkpoint.Key {
	return checkpoint.Key{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}
}
