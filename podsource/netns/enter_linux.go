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

// inside returns a socket that answers from inside a network namespace, to be closed.
func inside(ns int, setns func(fd, kind int) error) (h *netlink.Handle, err error) {
	err = withNetNS(ns, setns, func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a socket in it: %w", err)
	}
	return h, h.SetSocketTimeout(10 * time.Second)
}

// dump lists addresses, but for loopback and link-local ones, until none changes
// meanwhile, or five times. With podsource.ErrIncomplete come those that were seen
// while others changed.
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
			return nil, fmt.Errorf("one of its addresses is none: %v", a.IP)
		}
		ip = ip.Unmap()
		// The kernel's scope and the address itself must agree that nobody else
		// can reach it. In doubt it is one more reason to keep.
		local := a.Scope != unix.RT_SCOPE_UNIVERSE && (ip.IsLoopback() || ip.IsLinkLocalUnicast())
		if !local {
			ips = append(ips, ip)
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare) // a tenant may have any number
	return slices.Compact(ips), incomplete
}

// withNetNS calls do on a thread that is in a network namespace, and does nothing
// else meanwhile. A thread that does not come back must not be used again: it
// stays locked to its goroutine, and so ends with it. (The handles that package
// netlink makes for a namespace would let it go on.)
func withNetNS(ns int, setns func(fd, kind int) error, do func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- err }()
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread is the one that the process is shown by. While this
			// goroutine has it, another one gets another.
			err = withNetNS(ns, setns, do)
			runtime.UnlockOSThread()
			return
		}
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return
		}
		defer func() { _ = home.Close() }() // nothing was written through it
		if err = setns(ns, unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("entering it: %w", err)
			return
		}
		err = recoverPanic(do)
		if setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return <-done
}

// recoverPanic makes an error of a panic: the agent lives (R13).
func recoverPanic(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panicked: %v", p)
		}
	}()
	return do()
}
