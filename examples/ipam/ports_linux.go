// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// logReleased logs a release. It names the host ports that were mapped to the container: no DEL
// removed portmap's rules, and they lead to the address's next owner.
func (a *attempt) logReleased(r *hostlocal.Reservation, why string) {
	line := fmt.Sprintf("released %v in network %s, reserved %s for container %q and interface %q: %s",
		r.IP, r.Network, r.ReservedAt.Format("2006-01-02 15:04:05"), r.ContainerID, r.IfName, why)
	if ports := a.mappedPorts(r); ports != "" {
		line += "; its host ports " + ports + " may still lead to that address: remove their rules"
	}
	logf("%s", line)
}

// mappedPorts returns the host ports of r's attachment in libcni's caches.
func (a *attempt) mappedPorts(r *hostlocal.Reservation) string {
	var ports []string
	for _, dir := range a.node.conf.cacheDirs {
		path := filepath.Join(dir, r.Network+"-"+r.ContainerID+"-"+r.IfName)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() > 4<<20 {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var entry struct {
			CapabilityArgs struct {
				PortMappings []struct {
					HostPort int    `json:"hostPort"`
					Protocol string `json:"protocol"`
				} `json:"portMappings"`
			} `json:"capabilityArgs"`
		}
		if json.Unmarshal(text, &entry) != nil {
			continue
		}
		for _, m := range entry.CapabilityArgs.PortMappings {
			ports = append(ports, fmt.Sprintf("%d/%s", m.HostPort, m.Protocol))
		}
	}
	return strings.Join(ports, ", ")
}
