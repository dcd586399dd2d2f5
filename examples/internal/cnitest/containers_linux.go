// SPDX-License-Identifier: Apache-2.0

package cnitest

import (
	"errors"
	"io"
	"maps"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Containers are the network namespaces of a test, one for each container. Its methods may be
// called concurrently.
type Containers struct {
	t   testing.TB
	mu  sync.Mutex // guards ids
	ids map[string]bool
}

// NewContainers returns an empty set. The containers that exist at the end of the test are removed.
func NewContainers(t testing.TB) *Containers {
	c := &Containers{t: t, ids: make(map[string]bool)}
	t.Cleanup(func() {
		for _, id := range c.IDs() {
			c.Remove(id)
		}
	})
	return c
}

// NetNS returns the path of a container's network namespace, CNI_NETNS.
func NetNS(id string) string { return "/run/netns/" + id }

// Make makes a container, if it does not exist.
func (c *Containers) Make(id string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids[id] {
		return
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		h, err := netns.NewNamed(id)
		if err == nil {
			err = errors.Join(sysctls(), h.Close())
		}
		done <- err
	}()
	if err := <-done; err != nil {
		c.t.Errorf("making the namespace of %s: %v", id, err)
	}
	c.ids[id] = true
}

// Remove removes a container without DEL, as a power loss does.
func (c *Containers) Remove(id string) {
	c.t.Helper()
	if err := netns.DeleteNamed(id); err != nil {
		c.t.Errorf("removing the namespace of %s: %v", id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ids, id)
}

// IDs returns the existing containers, sorted.
func (c *Containers) IDs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.ids))
}

// Addresses asks the kernel for the global addresses in a container.
func (c *Containers) Addresses(id string) (ips []netip.Addr) {
	c.t.Helper()
	err := ns.WithNetNSPath(NetNS(id), func(ns.NetNS) error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && a.Scope == int(netlink.SCOPE_UNIVERSE) {
				ips = append(ips, ip.Unmap())
			}
		}
		return err
	})
	if err != nil {
		c.t.Errorf("asking the kernel for the addresses of %s: %v", id, err)
	}
	return ips
}

// RemoveLinkAtEnd removes an interface of the test's own namespace, such as a bridge, at the end of
// the test if it exists.
func RemoveLinkAtEnd(t testing.TB, name string) {
	t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", name).Run() }) // it may not exist
}

// Runtime returns libcni with plugins in the directory bin and its cache in another one. It passes
// the plugins' stderr on. The Exec is set here, since libcni would create it lazily and without a
// lock.
func Runtime(bin, cache string, stderr io.Writer) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{bin}, cache, &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: stderr}})
}
