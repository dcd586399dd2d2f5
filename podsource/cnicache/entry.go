// SPDX-License-Identifier: Apache-2.0

package cnicache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// maxEntry is the maximum size of a file. A configuration and a result have a few
// kilobytes.
const maxEntry = 4 << 20

// An attachment is a container's in a network.
type attachment struct{ network, containerID string }

// An entry is the content of a file.
type entry struct {
	attachments []attachment // one, or if damaged all that the file's name may mean
	paths       []string     // of its network namespace; empty if unknown
	ips         []netip.Addr
	damaged     bool // the file can't be read, or is not an entry
}

// name matches the container IDs and the names of networks that CNI allows (SPEC.md,
// section 2, "Parameters", and section 1).
var name = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// readEntry reads a file. Any error but fs.ErrNotExist means that the file is damaged or
// can't be read.
func readEntry(path string) (entry, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // so that a pipe does not block
	if err != nil {
		return entry{}, err
	}
	defer func() { _ = f.Close() }() // only read from
	text, err := io.ReadAll(io.LimitReader(f, maxEntry+1))
	if err != nil {
		return entry{}, err
	}
	if len(text) > maxEntry {
		return entry{}, fmt.Errorf("%s has more than %d bytes", path, maxEntry)
	}
	return parseEntry(text)
}

// parseEntry parses an entry of libcni 0.8 or later (cni, libcni cachedInfo). Earlier
// versions wrote only a result, without its container. Such a file counts as damaged: it
// claims by its name.
func parseEntry(text []byte) (entry, error) {
	var e struct {
		Kind, ContainerID, NetworkName, NetNS string
		Result                                struct {
			Interfaces []struct{ Sandbox string }
			IPs        []struct{ Address string } // CNI 0.3.0 and later
			IP4, IP6   struct{ IP string }        // before
		}
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return entry{}, err
	}
	if e.Kind != "cniCacheV1" || !name.MatchString(e.ContainerID) || !name.MatchString(e.NetworkName) {
		return entry{}, errors.New("it is not an entry of libcni's cache")
	}
	out := entry{attachments: []attachment{{e.NetworkName, e.ContainerID}}}
	if e.NetNS != "" {
		out.paths = []string{e.NetNS}
	}
	for _, i := range e.Result.Interfaces {
		if e.NetNS == "" && i.Sandbox != "" && !slices.Contains(out.paths, i.Sandbox) {
			out.paths = append(out.paths, i.Sandbox)
		}
	}
	addresses := []string{e.Result.IP4.IP, e.Result.IP6.IP}
	for _, ip := range e.Result.IPs {
		addresses = append(addresses, ip.Address)
	}
	for _, text := range addresses {
		text, _, _ = strings.Cut(text, "/")
		if ip, err := netip.ParseAddr(text); err == nil { // else the container ID is enough
			out.ips = append(out.ips, ip)
		}
	}
	return out, nil
}

// inName returns every attachment that a file name may mean. It has the form
// <network>-<container ID>-<interface>, and each part may have hyphens.
func inName(file string) (all []attachment) {
	parts := strings.Split(file, "-")
	for from := 1; from < len(parts); from++ {
		network := strings.Join(parts[:from], "-")
		for to := from + 1; to < len(parts); to++ {
			if id := strings.Join(parts[from:to], "-"); name.MatchString(id) && name.MatchString(network) {
				all = append(all, attachment{network, id})
			}
		}
	}
	return all
}
