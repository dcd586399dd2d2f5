// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

const (
	// logTime is how long a finished ADD waits for its lines to be read.
	logTime = 2 * time.Second
	// maxLines limits the lines about single releases of a pass.
	maxLines = 50
)

// logReleases notes a line for each released reservation, up to maxLines. A line names the host
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

func (r *request) logf(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf("hostlocal-gc-ipam: "+format+"\n", args...))
}

// flushLog writes the lines to stderr, which libcni passes on to the runtime's if the plugin
// succeeds. It may be a pipe without a reader or with a slow one, which neither ends nor delays an
// ADD: lines that are not read in time are lost.
func (r *request) flushLog() {
	if len(r.lines) == 0 {
		return
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // else a write to a closed pipe would end the program
	defer signal.Reset(syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		_, _ = os.Stderr.WriteString(strings.Join(r.lines, "")) // an error can't be reported
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(logTime):
	}
}

// mappedPorts returns the host ports of an entry's attachment in libcni's caches.
func (r *request) mappedPorts(e *gc.Entry) string {
	var ports []string
	for _, dir := range r.conf.cacheDirs {
		path := filepath.Join(dir, e.Network+"-"+e.ContainerID+"-"+e.IfName)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() > 4<<20 {
			continue
		}
		var record struct {
			CapabilityArgs struct {
				PortMappings []struct {
					HostPort int
					Protocol string
				}
			}
		}
		text, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(text, &record) != nil {
			continue
		}
		for _, m := range record.CapabilityArgs.PortMappings {
			ports = append(ports, fmt.Sprintf("%d/%s", m.HostPort, m.Protocol))
		}
	}
	return strings.Join(ports, ", ")
}
