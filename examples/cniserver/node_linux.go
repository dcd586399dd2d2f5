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

// unplumb removes an interface, and with it the other end of its veth pair. What
// is gone already, interface or namespace, is no error. It reports whether the
// namespace is there.
func unplumb(netns, ifName string) (there bool, err error) {
	// Not /proc/self: the process's first thread may be in a container's for a moment,
	// as that on which the function below runs.
	if netnsID(netns) == netnsID("/proc/thread-self/ns/net") {
		return false, fmt.Errorf("%s is the network namespace of the server itself, and no container's", netns)
	}
	err = ns.WithNetNSPath(netns, func(ns.NetNS) error {
		err := ip.DelLinkByName(ifName)
		if errors.Is(err, ip.ErrLinkNotFound) {
			return nil
		}
		return err
	})
	var gone ns.NSPathNotExistErr
	var none ns.NSPathNotNSErr // what its mount stood on is left
	if errors.As(err, &gone) || errors.As(err, &none) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("removing interface %s from %s: %w", ifName, netns, err)
	}
	return true, nil
}

// netnsID tells one network namespace from another at the same path. It is empty
// where there is none.
func netnsID(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// gate waits until no plugin of an earlier server runs any more: one that was
// killed may leave a delegate behind which still reserves an address. Each
// server holds a lock on path that its children inherit, so the lock is free
// when the last of them has ended. It stays held for the life of this process.
func gate(ctx context.Context, path string, log logr.Logger) error {
	// Without O_CLOEXEC, for the children.
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT, 0o600)
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for said := false; ; said = true {
		err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("locking %s: %w", path, err)
		}
		if !said {
			log.Info("Waiting for another server, or for the plugins that it started, to end", "lock", path)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for another server, or for the plugins that it started, to end (they hold %s): %w", path, ctx.Err())
		case <-tick.C:
		}
	}
}

// private runs f while what it creates is for this user alone. It must run
// before anything else creates files.
func private(f func()) {
	defer syscall.Umask(syscall.Umask(0o177))
	f()
}

// die ends this process as kill -9 does.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
