// SPDX-License-Identifier: Apache-2.0

package cnicache

import (
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// maxEntry is how much of a file is read, so that a longer one counts as damaged. A configuration
// and a result have a few kilobytes.
const maxEntry = 4 << 20

// An entry is a file of the cache.
type entry struct {
	attachments []podsource.Attachment // one, or all that the file's name may mean if the content is damaged
	paths       []string               // of its network namespace; empty if unknown
	ips         []netip.Addr
	made        time.Time // when it was written
	origin      string    // for people
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
	text, err := io.ReadAll(io.LimitReader(f, maxEntry))
	if err != nil {
		return entry{}, err
	}
	return parseEntry(text)
}

// An address of a result has one of these: Address since CNI 0.3.0, as an element of ips, and IP
// before, as ip4 or ip6.
type address struct{ Address, IP string }

// parseEntry parses an entry of libcni 0.8 or later (cni, libcni cachedInfo). Earlier
// versions wrote only a result, without its container. Such a file counts as damaged: it
// claims by its name. An address that other containers may have at the same time, such as a
// loopback or link-local one, claims nothing (hazard 89).
func parseEntry(text []byte) (entry, error) {
	var e struct {
		Kind, ContainerID, NetworkName, NetNS string
		Result                                struct {
			Interfaces []struct{ Sandbox string }
			IPs        []address
			IP4, IP6   address
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
	for _, a := range append(e.Result.IPs, e.Result.IP4, e.Result.IP6) {
		text, _, _ := strings.Cut(a.Address+a.IP, "/")
		if ip, err := netip.ParseAddr(text); err == nil && ip.IsGlobalUnicast() { // else the container ID is enough
			out.ips = append(out.ips, ip)
		}
	}
	return out, nil
}

// inName returns every attachment that a file name may mean. It has the form
// <network>-<container ID>-<interface>, and each part may have hyphens.
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
