// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/go-logr/logr"
)

// unplumb removes an interface, and with it the other end of its veth pair. It is no
// error if the interface or the namespace is already gone. It reports whether the
// namespace exists.
func unplumb(netns, ifName string) (there bool, err error) {
	// Not /proc/self, which is that of the process's first thread: it may be the thread
	// that WithNetNSPath moves to a container's namespace.
	if netnsID(netns) == netnsID("/proc/thread-self/ns/net") {
		return false, fmt.Errorf("%s is the network namespace of the server itself, not of a container", netns)
	}
	err = ns.WithNetNSPath(netns, func(ns.NetNS) error {
		err := ip.DelLinkByName(ifName)
		if errors.Is(err, ip.ErrLinkNotFound) {
			return nil
		}
		return err
	})
	var gone ns.NSPathNotExistErr
	var none ns.NSPathNotNSErr // its mount is gone, and the mount point is left
	if errors.As(err, &gone) || errors.As(err, &none) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("removing interface %s from %s: %w", ifName, netns, err)
	}
	return true, nil
}

// netnsID identifies the network namespace at a path. It is empty if the path does not
// exist.
func netnsID(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	st, _ := info.Sys().(*syscall.Stat_t) // never nil on Linux
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// acquireLock waits until neither another server nor a delegate that it started runs: a
// server that was killed may leave a delegate behind, which still reserves an address.
// Each server has a lock on path, which its delegates inherit, so the lock is free when
// the last of them has ended. It is held until this process and its delegates end.
func acquireLock(ctx context.Context, path string, log logr.Logger) error {
	// Without O_CLOEXEC, so that delegates inherit it.
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT, 0o600)
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	for waiting := false; ; waiting = true {
		err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !waiting {
			log.Info("Waiting for another server, or for the plugins that it started, to end", "lock", path, "reason", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("locking %s, which another server, or a plugin that it started, may have locked: %w: %w", path, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// withPrivateUmask runs f with a umask that gives access to this user alone. The umask is
// that of the process: nothing else may create files meanwhile.
func withPrivateUmask(f func()) {
	defer syscall.Umask(syscall.Umask(0o177))
	f()
}

// die ends this process as kill -9 does.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
