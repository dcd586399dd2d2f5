// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// owner returns the container and the interface of this ADD.
func owner() (containerID, ifName string) {
	return os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_IFNAME")
}

// betweenLooks is the time between two checks of a container, as between those of a pass (R5).
const betweenLooks = time.Second

// isMine reports whether an earlier ADD of the same container and interface made a reservation.
// host-local before 0.8.0 wrote no interface.
func (a *attempt) isMine(r *hostlocal.Reservation) bool {
	id, ifName := owner()
	return r.Network == a.node.conf.network && r.Owner == hostlocal.Owned && id != "" && r.ContainerID == id &&
		(r.IfName == ifName || r.IfName == "")
}

// isOwn reports whether this ADD's container has reserved an address of the network.
func (a *attempt) isOwn(ip netip.Addr) (bool, error) {
	list, err := a.node.store.List(a.ctx)
	return slices.ContainsFunc(list.Reservations, func(r hostlocal.Reservation) bool { return r.IP == ip && a.isMine(&r) }), err
}

// releaseOwn releases the reservation of an earlier ADD of this container and interface, from
// before a reboot or a crash. Its age does not matter, so no pass judges it. It is released only if
// nothing can be using it (R3):
//
//   - no process but this one and its ancestors serves the container;
//   - no network namespace has an address that the container has reserved in any
//     network;
//   - no entry of libcni's cache says that the container was attached to a live
//     namespace. This ADD's namespace counts if it is no younger than the entry;
//   - if its namespace may hide the address, because the main plugin is not in
//     addressing, a cache must have had to name it (unrecorded), and two checks a
//     second apart must find nothing: its ADD may be between two plugins.
//
// Reservations are listed before the sources are asked (R1), the sources are asked in
// the order of a container's life, and the release compares each file under the lock
// (R6, R8).
func (a *attempt) releaseOwn() (again bool, err error) {
	id, _ := owner()
	list, err := a.node.store.List(a.ctx)
	if err != nil {
		return false, err
	}
	rs := list.Reservations
	var own []*hostlocal.Reservation
	for i := range rs {
		if a.isMine(&rs[i]) {
			own = append(own, &rs[i])
		}
	}
	if len(own) == 0 { // another process has released it
		return true, nil
	}
	holder, err := a.ownHolder(id, own, rs)
	if err == nil && holder == "" && !a.node.conf.addresses() { // its ADD may be between two plugins (hazard 72)
		if a.pause(betweenLooks) {
			holder, err = a.ownHolder(id, own, rs)
		} else {
			err = a.ctx.Err()
		}
	}
	if err != nil {
		return false, fmt.Errorf("finding out whether container %s still uses its earlier address: %w", id, err)
	}
	if holder != "" {
		a.found(fmt.Sprintf("the address that container %s has is kept: %s", id, holder))
		return false, nil
	}
	_, away := a.release(own, "an earlier ADD of the same container and interface reserved it, and nobody uses it")
	return away == len(own), nil
}

// ownHolder names a possible user of own, or of any other reservation of container id. It is empty
// if there is none.
func (a *attempt) ownHolder(id string, own []*hostlocal.Reservation, rs []hostlocal.Reservation) (string, error) {
	ctx, cancel := context.WithTimeout(a.ctx, sourceTime)
	defer cancel()
	if other, err := otherProcess(id); err != nil || other != "" {
		return other, err
	}
	seen, err := a.node.kernel.Pods(ctx)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(seen.Parts, func(p podsource.Answer) bool { return p.SeesAddresses }) {
		return "", errors.New("network namespaces appear faster than they can be read")
	}
	for _, part := range seen.Parts {
		for _, p := range part.Pods {
			for _, ip := range p.IPs {
				if slices.ContainsFunc(rs, func(r hostlocal.Reservation) bool { return r.ContainerID == id && r.IP == ip }) {
					return fmt.Sprintf("%v is configured in %s", ip, p.Origin), nil
				}
			}
		}
	}
	cache, err := cnicache.New(cnicache.Options{Dirs: a.node.conf.cacheDirs, Living: a.liveNamespaces})
	if err != nil {
		return "", err
	}
	recorded, err := cache.Pods(ctx)
	if err != nil {
		return "", err
	}
	booted := time.Now().Add(-sinceBoot() - 2*time.Second) // some file systems keep only whole seconds
	for _, p := range recorded.Pods {
		ended := p.Unproven && p.StartedAt.Before(booted) // no namespace outlives a boot
		if !ended && slices.Contains(p.ContainerIDs, id) {
			return "it may live according to " + p.Origin, nil
		}
	}
	if !a.node.conf.addresses() && unrecorded(recorded.Cache, own, rs) {
		return fmt.Sprintf("with the plugin %q its namespace may hide it, and the CNI caches in %v may lack its record: "+
			"is the runtime's directory among these (cacheDirs)?", a.node.conf.plugin, a.node.conf.cacheDirs), nil
	}
	return otherProcess(id) // again: between two plugins of a chain no process runs
}

// hasEntry reports whether the caches have an entry of a reservation's owner, live or ended.
func hasEntry(caches *podsource.Cache, r *hostlocal.Reservation) bool {
	return caches != nil && slices.ContainsFunc(caches.Entries, func(e podsource.Attachment) bool {
		return e.Network == r.Network && e.ContainerID == r.ContainerID
	})
}

// unrecorded reports whether the owner of own may live without an entry in the caches. It has no
// entry now, not even a stale one. And either no entry belongs to a reservation of the network, so
// the caches may be another node's, or own is older than the network's entries, so that its own may
// have been wiped (R5, cnicache).
func unrecorded(caches *podsource.Cache, own []*hostlocal.Reservation, rs []hostlocal.Reservation) bool {
	if hasEntry(caches, own[0]) {
		return false
	}
	proven := slices.ContainsFunc(rs, func(r hostlocal.Reservation) bool { return r.Network == own[0].Network && hasEntry(caches, &r) })
	since := caches.Since[own[0].Network]
	older := func(r *hostlocal.Reservation) bool { return since.IsZero() || r.ReservedAt.Before(since) }
	return !proven || slices.ContainsFunc(own, older)
}

// liveNamespaces returns a function that reports which namespaces live. This ADD's namespace does
// not count for an older entry: the former namespace at its path is gone. An entry from the future,
// as after a boot without a clock, may also be older; it is treated as such if the container's
// namespace would show its address.
func (a *attempt) liveNamespaces(ctx context.Context) (func(path string, at time.Time) (may, sure bool), error) {
	lives, err := a.node.kernel.Living(ctx)
	if err != nil {
		return nil, err
	}
	here := os.Getenv("CNI_NETNS")
	since := mountedSince(here)
	return func(path string, at time.Time) (may, sure bool) {
		older := since.After(at) || at.After(time.Now()) && a.node.conf.addresses()
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
	var fs unix.Statfs_t
	info, err := os.Lstat(netNS)
	if err != nil || !info.Mode().IsRegular() || unix.Statfs(netNS, &fs) != nil || fs.Type != unix.NSFS_MAGIC {
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

// otherProcess returns a process that serves container id: an ADD in flight, or a DEL. It ignores
// this process and its ancestors with the same interface. It is empty if there is none.
func otherProcess(id string) (string, error) {
	own := ancestors()
	_, ifName := owner()
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return "", err
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		env, err := readEnviron("/proc/" + p.Name() + "/environ")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // it has ended
			continue
		}
		if err != nil {
			return "", fmt.Errorf("looking for other plugins that serve it: %w; this needs CAP_SYS_PTRACE over the node", err)
		}
		has := func(v string) bool { return bytes.Contains(env, []byte("\x00"+v+"\x00")) }
		if has("CNI_CONTAINERID="+id) && !(slices.Contains(own, pid) && has("CNI_IFNAME="+ifName)) {
			return fmt.Sprintf("process %d serves it", pid), nil
		}
	}
	return "", nil
}

// readEnviron reads an environment, with a zero before and after each variable. A program gets at
// most 6 MiB at its start (execve(2)), but a process may show any of its memory instead (prctl(2),
// PR_SET_MM_MAP). No plugin does.
func readEnviron(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(file, 8<<20))
	return slices.Concat([]byte{0}, text, []byte{0}), err
}

// ancestors returns this process and its ancestors.
func ancestors() []int {
	all := []int{os.Getpid()}
	for pid := os.Getppid(); pid > 0 && !slices.Contains(all, pid); pid = parentOf(pid) {
		all = append(all, pid)
	}
	return all
}

// parentOf returns the parent of a process, or 0. The parent follows the state, after the name,
// which is in brackets and may contain anything (proc(5), /proc/<pid>/stat).
func parentOf(pid int) int {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}

// release releases reservations, and logs them. It returns how many it released, and how many are
// away, which includes those that another process removed.
func (a *attempt) release(leaks []*hostlocal.Reservation, why string) (released, away int) {
	if len(leaks) == 0 {
		return 0, 0
	}
	done, err := a.node.store.Release(a.ctx, leaks...)
	if err != nil {
		a.found(err.Error())
	}
	for i, outcome := range done.Outcomes {
		switch outcome {
		case hostlocal.Released:
			released, away = released+1, away+1
			a.logReleased(leaks[i], why)
		case hostlocal.Gone:
			away++
		}
	}
	return released, away
}
