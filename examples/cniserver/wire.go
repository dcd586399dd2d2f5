// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// What plugin and server say to each other: HTTP on a unix socket, one POST for
// each CNI request. The answer is 200 with the result, or 500 with a CNI error
// (types.Error); 400 and above without one is this transport's own trouble.
const (
	defaultSocket = "/run/cniserver/cniserver.sock"
	requestPath   = "/cni"
	// maxRequest is the most that a request may have, in bytes. A GC request of
	// a thousand attachments has a tenth of it.
	maxRequest = 1 << 20
)

// A request is what CNI gives a plugin: its environment and its stdin.
type request struct {
	Command     string          `json:"command"`
	ContainerID string          `json:"containerID,omitempty"`
	NetNS       string          `json:"netns,omitempty"`
	IfName      string          `json:"ifName,omitempty"`
	Args        string          `json:"args,omitempty"`
	Path        string          `json:"path"`
	Config      json.RawMessage `json:"config"`
}

// key names the attachment that the request is about.
func (r *request) key(network string) checkpoint.Key {
	return checkpoint.Key{Network: network, ContainerID: r.ContainerID, IfName: r.IfName}
}
