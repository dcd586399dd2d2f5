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

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// maxEntry is the most that is read of a file. A configuration and a result are
// some kilobytes.
const maxEntry = 4 << 20

// An entry is what a file says of an attachment.
type entry struct {
	attachments []podsource.Attachment // just one, or all that its name may mean
	paths       []string               // of its network namespace; none is known where it is empty
	ips         []netip.Addr
	damaged     bool // it can't be read, or is no entry
}

// name is what CNI allows as a container ID and as the name of a network (SPEC.md,
// section 2, "Parameters", and section 1).
var name = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// readEntry reads a file. Any error but fs.ErrNotExist says that it is torn, or
// that it can't be read.
func readEntry(path string) (entry, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe in its place does not block
	if err != nil {
		return entry{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxEntry+1))
	if err != nil {
		return entry{}, err
	}
	if len(text) > maxEntry {
		return entry{}, fmt.Errorf("%s has more than %d bytes", path, maxEntry)
	}
	return parseEntry(text)
}

// parseEntry reads what libcni writes since 0.8 (cni, libcni cachedInfo). What it
// wrote before is a result alone, and does not say whose: like a torn file it
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
	out := entry{attachments: []podsource.Attachment{{Network: e.NetworkName, ContainerID: e.ContainerID}}}
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
		if ip, err := netip.ParseAddr(text); err == nil { // its container ID keeps it anyway
			out.ips = append(out.ips, ip)
		}
	}
	return out, nil
}

// inName returns every attachment that a file of this name may be about:
// <network>-<container ID>-<interface>, of which each may hold hyphens.
func inName(file string) (all []podsource.Attachment) {
	parts := strings.Split(file, "-")
	for from := 1; from < len(parts); from++ {
		network := strings.Join(parts[:from], "-")
		for to := from + 1; to < len(parts); to++ {
			if id := strings.Join(parts[from:to], "-"); name.MatchString(id) && name.MatchString(network) {
				all = append(all, podsource.Attachment{Network: network, ContainerID: id})
			}
		}
	}
	return all
}
