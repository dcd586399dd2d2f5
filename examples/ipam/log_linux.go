// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// maxLines limits the lines about single releases of a pass, and maxPorts the host ports in one.
const maxLines, maxPorts = 50, 20

// logReleases writes a line for each released reservation, up to maxLines. A line names the host
// ports that were mapped to the container: no DEL removed portmap's rules, and they lead to the
// address's next owner.
func (r *request) logReleases(entries []gc.Entry) (released int) {
	for i := range entries {
		e := &entries[i]
		if e.Verdict != gc.Released {
			continue
		}
		if released++; released > maxLines {
			continue
		}
		line := fmt.Sprintf("released %v in network %s, reserved %s for container %q and interface %q: %s",
			e.IP, e.Network, e.ReservedAt.Format("2006-01-02 15:04:05"), e.ContainerID, e.IfName, e.Reason.Text())
		if ports := r.mappedPorts(e); ports != "" {
			line += "; its host ports " + ports + " may still lead to that address: remove their rules"
		}
		r.logf("%s", line)
	}
	if more := released - maxLines; more > 0 {
		r.logf("released %d more in network %s", more, r.conf.network)
	}
	return released
}

// logf writes a line to stderr, which libcni passes on to the runtime's if the plugin succeeds. All
// lines of a pass fit into a pipe that nobody reads (pipe(7)).
func (r *request) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(os.Stderr, "hostlocal-gc-ipam: "+format+"\n", args...) // an error can't be reported
}

// mappedPorts returns the host ports of an entry's attachment in libcni's caches.
func (r *request) mappedPorts(e *gc.Entry) string {
	var ports []string
	for _, dir := range r.conf.cacheDirs {
		var record struct {
			CapabilityArgs struct {
				PortMappings []struct {
					HostPort int
					Protocol string
				}
			}
		}
		path := filepath.Join(dir, e.Network+"-"+e.ContainerID+"-"+e.IfName)
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() { // reading a pipe would wait
			text, _ := os.ReadFile(path)      // it may be gone by now
			_ = json.Unmarshal(text, &record) // what is no record has no ports
		}
		for _, m := range record.CapabilityArgs.PortMappings {
			ports = append(ports, fmt.Sprintf("%d/%.9s", m.HostPort, m.Protocol))
		}
	}
	if more := len(ports) - maxPorts; more > 0 {
		ports = append(ports[:maxPorts], fmt.Sprintf("%d more", more))
	}
	return strings.Join(ports, ", ")
}
