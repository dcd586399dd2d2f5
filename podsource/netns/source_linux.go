// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The machine's own PID namespace has this inode: PROC_PID_INIT_INO in the
// kernel's include/linux/proc_ns.h.
const initialPIDNamespace = 0xEFFFFFFC

// maxScans bounds how often the node is looked at in one pass, where namespaces
// come all the time.
const maxScans = 5

// A Source asks the kernel which addresses are in use. It holds nothing open
// between two calls of Pods.
type Source struct {
	opts  Options
	setns func(fd, kind int) error
}

// New returns a source and touches nothing. On other systems than Linux it is an
// error.
func New(opts Options) (*Source, error) {
	if opts.Proc == "" {
		opts.Proc = "/proc"
	}
	if opts.HostNetNS == "" {
		opts.HostNetNS = filepath.Join(opts.Proc, "1", "ns", "net")
	}
	return &Source{opts: opts, setns: unix.Setns}, nil
}

// Pods returns one pod for each network namespace that has an address, with its
// addresses and where it was found. It names none: a name would set it apart from
// what other sources say of the same pod, as a conflict.
//
// The answer is supplementary, so it may be empty. It declares that every address
// in a network namespace is in it, unless namespaces came faster than they could
// be looked at.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "netns", Supplementary: true}
	host, err := s.checkNode()
	if err != nil {
		return a, err
	}
	sc := scan{proc: s.opts.Proc, setns: s.setns, found: map[uint64]bool{host: true}, mounts: make(map[uint64]bool)}
	// A process may come where the scan has been, when the last one in its
	// namespace goes where it has not been yet. So it ends with a scan that
	// finds nothing new.
	for n := 0; n < maxScans && !a.SeesAddresses; n++ {
		before := len(sc.found)
		if err := sc.processes(ctx); err != nil {
			return a, err
		}
		a.SeesAddresses = len(sc.found) == before
	}
	a.Pods = sc.pods
	return a, nil
}

// checkNode makes sure that all processes of the node can be seen, and returns
// the inode of the node's network namespace. Process 1 tells: who may look into
// it may look into all, unless it is just a container's.
func (s *Source) checkNode() (uint64, error) {
	first := filepath.Join(s.opts.Proc, "1", "ns", "pid")
	inode, err := inodeOf(first)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("looking at process 1: %w; is a procfs mounted at %s, and without hidepid?", err, s.opts.Proc)
	}
	if err != nil {
		return 0, fmt.Errorf("looking at process 1: %w", hint(err))
	}
	if inode != initialPIDNamespace && !s.opts.Nested {
		return 0, fmt.Errorf("%s is not the machine's process 1, but that of a container, and others' processes can't be seen; "+
			"the agent's pod needs hostPID (where the node is itself a container, as in kind, say so with Nested)",
			filepath.Dir(filepath.Dir(first)))
	}
	host, err := inodeOf(s.opts.HostNetNS)
	if err != nil {
		return 0, fmt.Errorf("looking at the node's network namespace: %w", hint(err))
	}
	return host, nil
}

// inodeOf returns the number of the namespace that a file of it shows.
func inodeOf(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s: its inode is not known", path)
	}
	return stat.Ino, nil
}

// hint adds to a refused permission what is needed.
func hint(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; this needs CAP_SYS_PTRACE and CAP_SYS_ADMIN over the node, as a privileged container with hostPID has them", err)
	}
	return err
}
