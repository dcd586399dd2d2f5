// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"unsafe"
)

const nsfs = 0x6e736673 // NSFS_MAGIC, linux/magic.h

const nsGetID = 0x8008b70d // NS_GET_ID, linux/nsfs.h

const initialPIDNamespace = "pid:[4026531836]" // PROC_PID_INIT_INO, linux/proc_ns.h

// readNetNS returns the network namespace at path, or zero if there is none that can be read. A
// mount that is not propagated to this mount namespace is an empty file here.
func readNetNS(path string) NetNS {
	// After an error it is -1, and the next calls return errors, too.
	fd, _ := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	defer func() { _ = syscall.Close(fd) }() // nothing was written through it
	var stat syscall.Stat_t
	var fs syscall.Statfs_t
	if syscall.Fstat(fd, &stat) != nil || syscall.Fstatfs(fd, &fs) != nil || int64(fs.Type) != nsfs {
		return NetNS{}
	}
	n := NetNS{Path: path, Inode: stat.Ino}
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), nsGetID, uintptr(unsafe.Pointer(&n.ID))) // zero after an error
	return n
}

// divide separates entries by whether their network namespaces have certainly ended. That one is
// not at its path is not enough: `ip netns del` removes only a mount, and this process may not see
// the node's mounts (hazards 50, 92). It has ended if no process is in it, and none sees it
// mounted. If the processes of the node can't be read, all are live, and unknown says why.
func divide(ctx context.Context, all []Entry, nested bool) (live, ended []Entry, unknown error) {
	exist := make(namespaces)
	looks := 0
	for _, e := range all {
		now := readNetNS(e.NetNS.Path)
		if exist[now.shown()] = now.ID; e.NetNS.Inode != 0 && !e.NetNS.is(now) {
			looks = 2 // a process may start another one after the list was read, and end
		}
	}
	for range looks {
		if unknown = exist.readProcesses(ctx, nested); unknown != nil {
			return all, nil, unknown
		}
	}
	for _, e := range all {
		id, exists := exist[e.NetNS.shown()]
		if now := (NetNS{Inode: e.NetNS.Inode, ID: id}); e.NetNS.Inode == 0 || exists && e.NetNS.is(now) {
			live = append(live, e)
		} else {
			ended = append(ended, e)
		}
	}
	return live, ended, nil
}

// namespaces are the IDs of network namespaces that exist, by how the kernel shows them. No two
// have one number at a time.
type namespaces map[string]uint64

// readProcesses adds the network namespaces of all threads of the node, and those that they see
// mounted. It is an error if not all can be seen.
func (exist namespaces) readProcesses(ctx context.Context, nested bool) error {
	// Who may read process 1 may read all. If it is only a container's, others may exist: also
	// beside it another process may have a PID namespace of its own.
	first, err := os.Readlink("/proc/1/ns/pid")
	processes, listErr := os.ReadDir("/proc")
	own, ownErr := os.ReadFile("/proc/self/mountinfo")
	if err := cmp.Or(err, listErr, ownErr); err != nil {
		return err
	}
	if hidepid.Match(own) {
		return errors.New("/proc is mounted with hidepid, so other users' processes can't be seen; the agent needs a procfs without it")
	}
	mountNS := make(map[string]bool)
	read := make(map[string]bool) // those whose mounts were read, and the roots in them
	isNode := first == initialPIDNamespace
	for _, p := range processes {
		if strings.Trim(p.Name(), "0123456789") != "" {
			continue
		}
		// The first thread, which stands for the process, may have ended before the others.
		threads, err := os.ReadDir("/proc/" + p.Name() + "/task")
		for _, t := range threads {
			pidNS, threadErr := exist.readThread("/proc/"+p.Name()+"/task/"+t.Name(), mountNS, read)
			if nested && threadErr == nil && pidNS != first {
				isNode = true // this is a container in it
			}
			err = cmp.Or(err, unlessEnded(threadErr))
		}
		if err := cmp.Or(unlessEnded(err), context.Cause(ctx)); err != nil {
			return err
		}
	}
	for shown := range mountNS {
		if !read[shown] {
			return fmt.Errorf("no process shows the mounts of mount namespace %s, which may be kept by a mount (findmnt -t nsfs)", shown)
		}
	}
	if !isNode {
		return errors.New("process 1 is a container's, so the node's can't be seen; the agent needs hostPID " +
			"(if the node is itself a container, as in kind, say so with Nested; then some container must run)")
	}
	return nil
}

// unlessEnded returns err if it does not say that a process or thread has ended: then it has no
// namespaces (mounts_open_common in the kernel's fs/proc_namespace.c returns EINVAL).
func unlessEnded(err error) error {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// hidepid matches a procfs at /proc with this option in mountinfo. A process that may read process 1
// may still not see those of other users.
var hidepid = regexp.MustCompile(`(?m)^\S+ \S+ \S+ \S+ /proc .* - proc \S+ \S*\bhidepid=`)

// mounts matches the mounts of network and mount namespaces in mountinfo, proc(5). Of other file
// systems this field is a path.
var mounts = regexp.MustCompile(`(?m)^\d+ \d+ \d+:\d+ ((?:net|mnt):\[\d+\]) `)

// readThread adds the network namespace of a thread, and those that it sees mounted, unless those of
// its mount namespace below its root were read. It adds the mount namespaces that it finds to mountNS,
// also one that is itself mounted. It returns the PID namespace of the thread.
func (exist namespaces) readThread(dir string, mountNS, read map[string]bool) (pidNS string, err error) {
	var links [4]string
	for i, name := range []string{"/ns/net", "/ns/mnt", "/root", "/ns/pid"} {
		if links[i], err = os.Readlink(dir + name); err != nil {
			return "", fmt.Errorf("%w; the agent needs CAP_SYS_PTRACE", err)
		}
	}
	exist.add(links[0], dir+"/ns/net")
	if root := links[1] + links[2]; !read[root] {
		text, err := os.ReadFile(dir + "/mountinfo")
		if err != nil {
			return "", err
		}
		for _, m := range mounts.FindAllStringSubmatch(string(text), -1) {
			if exist.add(m[1], ""); strings.HasPrefix(m[1], "mnt:") {
				mountNS[m[1]] = true
			}
		}
		mountNS[links[1]] = true
		if len(text) > 0 { // a root that was unmounted, which is also shown as "/", sees none
			read[root], read[links[1]] = true, true
		}
	}
	return links[3], nil
}

// add adds a network namespace, and its ID if that can be read at path.
func (exist namespaces) add(shown, path string) {
	if exist[shown] == 0 {
		exist[shown] = 0
		if now := readNetNS(path); now.shown() == shown { // else the thread is in another one by now
			exist[shown] = now.ID
		}
	}
}
