// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	cni "github.com/containerd/go-cni"
	"golang.org/x/sys/unix"
)

// gocni is a minimal runtime with the library of containerd's own clients. It makes a network namespace, unless it
// exists, calls CNI ADD, prints "ready", and executes the container's program in the namespace.
//
//	gocni CONF-DIR PLUGIN-DIR CONTAINER-ID PROGRAM
//
// The namespace is mounted below /run/netns, so it exists after the end of the program until it is unmounted. gocni
// never calls DEL. It returns on errors only.
func gocni(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: gocni CONF-DIR PLUGIN-DIR CONTAINER-ID PROGRAM")
	}
	conf, plugins, id, program := args[0], args[1], args[2], args[3]
	network, err := cni.New(cni.WithPluginConfDir(conf), cni.WithPluginDir([]string{plugins}), cni.WithDefaultConf)
	if err != nil {
		return err
	}
	path := filepath.Join("/run/netns", id)
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and nothing else runs in its namespace
		made <- mountNew(path)
	}()
	if err := <-made; err != nil {
		return fmt.Errorf("making the network namespace %s: %w", path, err)
	}
	if _, err := network.Setup(context.Background(), id, path); err != nil {
		return err
	}
	runtime.LockOSThread()
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, "ready"); err != nil {
		return err
	}
	return syscall.Exec(program, []string{program}, nil)
}

// mountNew moves this thread into a new network namespace, and mounts that at path, unless path exists.
func mountNew(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
}
