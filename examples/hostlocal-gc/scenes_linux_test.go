// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func init() { scenes["locked"] = lockedNode } //nolint:gochecknoinits // a scene that other systems do not have

// lockedNode has a network whose lock this process holds.
func lockedNode(t *testing.T) *node {
	n := fullNode(t)
	f, err := os.Open(filepath.Join(n.dir, "networks", "podnet", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // only read
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return n
}
