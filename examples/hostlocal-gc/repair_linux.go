// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addressesOn returns the addresses that the kernel shows on an interface in a network namespace. Package ns of the
// plugins looks for this process in /proc, which may be that of another PID namespace.
func addressesOn(ctx context.Context, netNS, ifName string) ([]netip.Addr, error) {
	var ips []netip.Addr // the goroutine's until it is done
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good, so that the thread ends with the goroutine
		fd, err := unix.Open(netNS, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == nil {
			err = errors.Join(unix.Setns(fd, unix.CLONE_NEWNET), unix.Close(fd))
		}
		if err == nil {
			ips, err = addressesHere(ifName)
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s in %s: %w", ifName, netNS, err)
	}
	return ips, nil
}

func addressesHere(ifName string) (ips []netip.Addr, err error) {
	link, err := netlink.LinkByName(ifName)
	if err != nil {
		return nil, err
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			ips = append(ips, ip.Unmap())
		}
	}
	return ips, err
}

// draft writes the content of a reservation (plugins, backend/disk Reserve) to a file beside it, and returns its path. A
// crash leaves the whole content or none at the name of the reservation. The DEL of the container removes the draft
// like a reservation, since it reads every file of the network (ReleaseByID), and so does a DEL after a crash.
func (f *flags) draft(l lost) (path string, err error) {
	dir := filepath.Join(f.dataDir, l.network)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	file, err := os.CreateTemp(dir, ".repair-*") // with the plugin's mode, 0600
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(l.containerID + "\r\n" + l.ifName)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// reserve gives the draft the name of the reservation, under the plugin's lock. A link is never made over a file.
func (f *flags) reserve(ctx context.Context, l lost, draft string) error {
	dir := filepath.Join(f.dataDir, l.network)
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o750)
	if err != nil {
		return fmt.Errorf("taking the lock: %w", err)
	}
	try := func() error {
		return os.NewSyscallError("flock", unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	}
	for err = try(); err != nil; err = try() {
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("another process holds %s: %w (%w)", lock.Name(), err, ctx.Err()), lock.Close())
		case <-time.After(10 * time.Millisecond):
		}
	}
	path := filepath.Join(dir, l.ip.String())
	err = errors.Join(os.Link(draft, path), lock.Close())
	there, _ := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrExist) && there != nil && !there.Mode().IsRegular():
		return fmt.Errorf("%s is no file", path)
	case errors.Is(err, fs.ErrExist):
		return errors.New("an ADD has reserved it meanwhile")
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("a DEL of its container came meanwhile")
	case err != nil:
		return err
	}
	opened, err := os.Open(dir)
	if err == nil {
		err = errors.Join(opened.Sync(), opened.Close())
	}
	return err
}
