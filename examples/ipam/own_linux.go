// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// ownADD returns the attachment of this process's ADD.
func ownADD(network string) podsource.Attachment {
	return podsource.Attachment{Network: network, ContainerID: os.Getenv("CNI_CONTAINERID"), IfName: os.Getenv("CNI_IFNAME")}
}

// A kernel is what the kernel knows, as this ADD sees it.
type kernel struct {
	*netns.Source
	own     podsource.Attachment
	shows   bool          // the namespace of a container shows its addresses
	longest time.Duration // of an ADD
}

// newSource returns the sources of a pass: the kernel and libcni's caches.
func newSource(conf *config) (podsource.Source, error) {
	opts := netns.Options{Nested: conf.nested, StartedByRuntime: mountedByRuntime(os.Getenv("CNI_NETNS")), Patience: conf.timeout / 10}
	if conf.addresses() {
		opts.Networks = []string{conf.network}
	}
	source, err := netns.New(opts)
	if err != nil {
		return nil, err
	}
	k := &kernel{source, ownADD(conf.network), conf.addresses(), max(netns.DefaultLongestADD, conf.timeout)}
	cache, err := cnicache.New(cnicache.Options{Dirs: conf.cacheDirs, Living: k.Living})
	if err != nil {
		return nil, err
	}
	return podsource.Union(k, cache), nil
}

// errNoNode is returned if process 1 is not known to be the node's.
var errNoNode = errors.New("process 1 is a container's")

// asNoNode makes errNoNode of the errors of package netns that say so: a union ignores a source with ErrNotHere.
func asNoNode(err error) error {
	if errors.Is(err, podsource.ErrNotHere) || strings.Contains(err.Error(), "process 1 is a container's") {
		return fmt.Errorf("%w: %s", errNoNode, err.Error())
	}
	return err
}

// Pods returns what the kernel knows, without this ADD, and with any other process that serves its
// container: another ADD, or a DEL. An answer that lacks something lets nothing be released, so it
// is an error: on a busy node the next one may lack nothing.
func (k *kernel) Pods(ctx context.Context) (podsource.Answer, error) {
	a, err := k.Source.Pods(ctx)
	if err != nil {
		return a, asNoNode(err)
	}
	var adds, addresses bool
	for i := range a.Parts {
		part := &a.Parts[i]
		adds, addresses = adds || len(part.SeesADDs) > 0, addresses || part.SeesAddresses
		if len(part.SeesADDs) > 0 {
			part.Pods = slices.DeleteFunc(part.Pods, func(p podsource.Pod) bool { return slices.Contains(p.ContainerIDs, k.own.ContainerID) })
		}
		if part.Note != "" {
			a.Note = part.Note
		}
	}
	if !adds || !addresses {
		return a, fmt.Errorf("%w: %s", podsource.ErrIncomplete, a.Note)
	}
	other, err := otherProcess(k.own, k.longest)
	if other != "" {
		a.Parts = append(a.Parts, podsource.Answer{Source: "processes", Supplementary: true,
			Pods: []podsource.Pod{{ContainerIDs: []string{k.own.ContainerID}, Origin: other}}})
	}
	return a, err
}

// Living is that of the kernel's source, with what this ADD knows of its own namespace: the former
// one at its path is gone. So its path does not prove an older entry, nor one from the future, as
// after a boot without a clock, where the namespace would show the address.
func (k *kernel) Living(ctx context.Context) (func(path string, at time.Time) (may, sure bool), error) {
	lives, err := k.Source.Living(ctx)
	if err != nil {
		return nil, err
	}
	here := os.Getenv("CNI_NETNS")
	since := mountedSince(here)
	return func(path string, at time.Time) (may, sure bool) {
		older := since.After(at) || at.After(time.Now()) && k.shows
		if path != "" && cleanNetNS(path) == cleanNetNS(here) && older {
			return false, true
		}
		return lives(path, at)
	}, nil
}

// mountedSince returns an upper limit for the time at which a network namespace was mounted at a
// path. The kernel makes its inode, with the current time, when the namespace is first accessed,
// and a mount keeps the inode (Linux, fs/nsfs.c and fs/libfs.c, path_from_stashed). It is zero if
// there is no mount. The target of a link, such as those of procfs, may get a new inode at each
// access.
func mountedSince(netNS string) time.Time {
	var stat unix.Statfs_t
	info, err := os.Lstat(netNS)
	if err != nil || !info.Mode().IsRegular() || unix.Statfs(netNS, &stat) != nil || stat.Type != unix.NSFS_MAGIC {
		return time.Time{}
	}
	return info.ModTime()
}

// cleanNetNS makes the path of a namespace unique: /var/run is /run.
func cleanNetNS(p string) string {
	p = path.Clean(p)
	if rest, ok := strings.CutPrefix(p, "/var/run/"); ok {
		return "/run/" + rest
	}
	return p
}

// mountedByRuntime reports whether a network namespace is mounted at a path in the mount namespace
// of process 1, which is not this process, and no other mount namespace has received or made that
// mount (proc(5), "master" and "shared" in mountinfo). Then the runtime mounted it there, and process 1
// is the runtime's. A pod that executes plugins, such as Multus' daemon, shares such mounts with its
// node. In k3d /run and /var/run are two directories.
func mountedByRuntime(netNS string) (there bool) {
	text, err := os.ReadFile("/proc/1/mountinfo")
	if err != nil || os.Getpid() == 1 {
		return false
	}
	for line := range strings.Lines(string(text)) {
		mount, of, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(mount); strings.HasPrefix(of, "nsfs ") && len(fields) > 4 && cleanNetNS(fields[4]) == cleanNetNS(netNS) {
			if there = !strings.Contains(mount, " master:") && !strings.Contains(mount, " shared:"); !there {
				return false
			}
		}
	}
	return there
}

// otherProcess describes a process that serves the container of this ADD. It ignores this process and
// its ancestors, and those older than any ADD: daemons that a plugin has started. It is empty if
// there is none.
func otherProcess(of podsource.Attachment, longest time.Duration) (string, error) {
	ignored := ancestors()
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return "", err
	}
	for _, path := range processes {
		pid := strings.Split(path, "/")[2]
		if _, started := statOf(pid); slices.Contains(ignored, pid) || sinceBoot()-started >= longest {
			continue
		}
		// A program gets at most 6 MiB at its start (execve(2)), but a process may show any of its memory
		// instead (prctl(2), PR_SET_MM_MAP). No plugin does.
		file, err := os.Open(path)
		text, readErr := io.ReadAll(io.LimitReader(file, 8<<20))
		_ = file.Close()                                                                                 // only read, or nil
		if err = cmp.Or(err, readErr); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // it has ended
			continue
		}
		if err != nil {
			return "", fmt.Errorf("looking for other plugins that serve container %s: %w; this needs CAP_SYS_PTRACE over the node", of.ContainerID, err)
		}
		if bytes.Contains(slices.Concat([]byte{0}, text), []byte("\x00CNI_CONTAINERID="+of.ContainerID+"\x00")) {
			return "process " + pid + " serves it", nil
		}
	}
	return "", nil
}

// ancestors returns this process and its ancestors.
func ancestors() (all []string) {
	for pid := strconv.Itoa(os.Getpid()); pid != "" && !slices.Contains(all, pid); {
		all = append(all, pid)
		pid, _ = statOf(pid)
	}
	return all
}

// statOf returns the parent of a process, and when it was started, since the boot, in ticks of 10 ms
// (proc(5), /proc/<pid>/stat, ppid and starttime). They follow the name, which is in brackets and may
// contain anything. If the process has ended, its parent is empty, and it was started now.
func statOf(pid string) (parent string, started time.Duration) {
	text, _ := os.ReadFile("/proc/" + pid + "/stat")
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return "", sinceBoot()
	}
	ticks, _ := strconv.ParseInt(fields[19], 10, 64) // it is a number
	return fields[1], time.Duration(ticks) * 10 * time.Millisecond
}
