// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// openNetlink returns a netlink socket of a network namespace. The caller closes it.
func openNetlink(ns int, setns func(fd, kind int) error) (h *netlink.Handle, err error) {
	err = withNetNS(ns, setns, func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a socket in it: %w", err)
	}
	return h, h.SetSocketTimeout(10 * time.Second)
}

// dump lists addresses except loopback and link-local ones. If addresses change
// meanwhile, it lists them again, five times in all, and then returns the last list
// with podsource.ErrIncomplete.
func dump(addrList func(netlink.Link, int) ([]netlink.Addr, error)) (ips []netip.Addr, err error) {
	list, err := addrList(nil, netlink.FAMILY_ALL)
	for try := 1; errors.Is(err, netlink.ErrDumpInterrupted) && try < 5; try++ {
		list, err = addrList(nil, netlink.FAMILY_ALL)
	}
	var incomplete error
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		incomplete, err = fmt.Errorf("listing its addresses: %w: %w", podsource.ErrIncomplete, err), nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing its addresses: %w", err)
	}
	for _, a := range list {
		if a.IPNet == nil {
			return nil, errors.New("one of its addresses is missing from the kernel's answer")
		}
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			return nil, fmt.Errorf("one of its addresses is invalid: %v", a.IP)
		}
		ip = ip.Unmap()
		// An address is left out only if both its scope and the address itself are
		// local. In doubt it keeps a reservation.
		local := a.Scope != unix.RT_SCOPE_UNIVERSE && (ip.IsLoopback() || ip.IsLinkLocalUnicast())
		if !local {
			ips = append(ips, ip)
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare) // a tenant may configure any number
	return slices.Compact(ips), incomplete
}

// withNetNS calls do on a thread of its own in a network namespace. A thread that
// can't return to its namespace must not be used again: it stays locked to its
// goroutine and ends with it. (Handles that package netlink opens in a namespace would
// reuse the thread.)
func withNetNS(ns int, setns func(fd, kind int) error, do func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- err }()
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread stands for the process in procfs. While it is locked to
			// this goroutine, another goroutine gets another thread.
			err = withNetNS(ns, setns, do)
			runtime.UnlockOSThread()
			return
		}
		original, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return
		}
		defer func() { _ = original.Close() }() // nothing was written through it
		if err = setns(ns, unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("entering it: %w", err)
			return
		}
		err = recoverPanic(do)
		if setns(int(original.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return <-done
}

// recoverPanic returns a panic as an error, so that the agent goes on (R13).
func recoverPanic(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panicked: %v", p)
		}
	}()
	return do()
}
