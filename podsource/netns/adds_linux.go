// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// ticks is how many units of time in /proc/<pid>/stat make a second: USER_HZ,
// which is 100 on all architectures that Go has (proc(5), sysconf(3)).
const ticks = 100

// A cniADD is a process that runs a CNI ADD, as its environment says: whoever runs
// a plugin sets CNI_COMMAND and CNI_CONTAINERID there (CNI spec, "Parameters").
type cniADD struct {
	pid         string
	containerID string
	netNS       string   // CNI_NETNS
	homes       []uint64 // the network namespaces that its threads are in
	ofNode      bool     // surely in the node's PID namespace, and so no container's
}

// environment notes the ADD that a process runs.
func (s *scan) environment(pid string) error {
	dir := s.proc + "/" + pid
	var text []byte
	_, err := anyThread(dir, func(dir string) (err error) {
		text, err = s.read(dir + "/environ")
		if err == nil && len(text) == 0 {
			return errExited // or a thread of the kernel's, or none that was given any
		}
		return err
	})
	if errors.Is(err, errTooLong) { // no runtime starts a plugin so
		return nil
	}
	if err != nil {
		return err
	}
	if !bytes.Contains(text, []byte("CNI_COMMAND=ADD\x00")) { // nearly all end here
		return nil
	}
	netNS, containerIDs := addIn(text)
	homes, err := s.homes(dir)
	if err != nil {
		return err
	}
	node, _ := nsInode(s.proc + "/1/ns/pid") // zero beside an error, which no process's is
	its, err := nsInode(dir + "/ns/pid")
	ofNode := err == nil && its == node
	for _, containerID := range containerIDs {
		s.adds = append(s.adds, cniADD{pid, containerID, netNS, homes, ofNode})
	}
	return nil
}

// addIn returns the container IDs of the ADD that an environment names. Of several
// variables of one name some programs take the first, and some the last.
func addIn(text []byte) (netNS string, containerIDs []string) {
	var add bool
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		name, value, _ := strings.Cut(string(entry), "=")
		switch name {
		case "CNI_COMMAND":
			add = add || value == "ADD"
		case "CNI_CONTAINERID":
			containerIDs = append(containerIDs, value)
		case "CNI_NETNS":
			netNS = value
		}
	}
	if last := len(containerIDs) - 1; last > 1 {
		containerIDs = []string{containerIDs[0], containerIDs[last]}
	}
	// What CNI does not allow no runtime sets, and no plugin takes (cni, pkg/utils
	// ValidateContainerID).
	containerIDs = slices.DeleteFunc(containerIDs, func(id string) bool { return !add || !validID(id) })
	return netNS, containerIDs
}

// homes returns the network namespaces that the threads of a process are in.
func (s *scan) homes(dir string) (inodes []uint64, err error) {
	threads, err := numericEntries(dir + "/task")
	if err != nil {
		return nil, ignoreExited(dir, err)
	}
	for _, tid := range threads {
		thread := dir + "/task/" + tid
		inode, err := nsInode(thread + "/ns/net")
		if err := ignoreExited(thread, err); err != nil {
			return nil, err
		}
		if err == nil && !slices.Contains(inodes, inode) {
			inodes = append(inodes, inode)
		}
	}
	return inodes, nil
}

func validID(id string) bool {
	for i, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return id != ""
}

// claims returns the container IDs of the ADDs under way, each with a process
// that runs it. Left out are processes that can't be plugins (hazard 78): those
// that run for longer than any ADD, as a daemon does that inherited the
// variables, and those of a container in the very namespace that they say they set
// up, as one is whose owner sets them.
func (s *scan) claims(longest time.Duration) (map[string]string, error) {
	claims := make(map[string]string)
	for _, a := range s.adds {
		started, comm, err := startOf(s.proc + "/" + a.pid)
		if err != nil {
			if err := ignoreExited(s.proc+"/"+a.pid, err); err != nil {
				return nil, fmt.Errorf("looking at process %s: %w", a.pid, hint(err))
			}
			claims[a.containerID] = "process " + a.pid // it has ended since, and counts
			s.underWay = append(s.underWay, a)
			continue
		}
		if boottime.Since()-started <= longest && !s.atHome(a) { // also where the kernel tells no time
			claims[a.containerID] = fmt.Sprintf("process %s (%s)", a.pid, printable(comm))
			s.underWay = append(s.underWay, a)
		}
	}
	return claims, nil
}

// atHome reports whether all threads of an ADD's process are in the network
// namespace that it says it sets up, and the process is in another PID namespace
// than the node. A plugin that does its work in the former is not. What is not
// surely so is not so.
func (s *scan) atHome(a cniADD) bool {
	node, nodeErr := nsInode(s.proc + "/1/ns/pid")
	its, err := nsInode(s.proc + "/" + a.pid + "/ns/pid")
	if nodeErr != nil || err != nil || its == node {
		return false
	}
	if a.netNS == "/proc/self/ns/net" || a.netNS == "/proc/thread-self/ns/net" {
		return true
	}
	inodes := s.namespacesAt(a.netNS)
	return len(inodes) == 1 && len(a.homes) == 1 && inodes[0] == a.homes[0]
}

// namespacesAt returns the network namespaces that a CNI_NETNS may mean.
func (s *scan) namespacesAt(netNS string) []uint64 {
	if pid, ok := processOf(netNS); ok {
		inode, _ := nsInode(s.proc + "/" + pid + "/ns/net") // zero, which is none's, beside an error
		return []uint64{inode}
	}
	return s.mountedAt[cleanPath(netNS)]
}

// cleanPath is a path without what makes two of one: /var/run is /run.
func cleanPath(p string) string {
	p = path.Clean(p)
	if rest, ok := strings.CutPrefix(p, "/var/run/"); ok {
		return "/run/" + rest
	}
	return p
}

// ofProcess is the path of a process's network namespace, or of a thread's, wherever
// procfs is mounted: /proc/4711/ns/net, /host/proc/4711/task/4712/ns/net.
var ofProcess = regexp.MustCompile(`(?:^|/)proc/([0-9]+)/(?:task/[0-9]+/)?ns/net$`)

// processOf returns the process in such a path.
func processOf(p string) (pid string, ok bool) {
	if m := ofProcess.FindStringSubmatch(path.Clean(p)); m != nil {
		return m[1], true
	}
	return "", false
}

// startOf returns when a process or thread started, since the node's boot, and
// what it runs.
func startOf(dir string) (since time.Duration, comm string, err error) {
	comm, fields, err := status(dir)
	if err != nil {
		return 0, "", err
	}
	n, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("%s/stat: the time of its start: %w", dir, err)
	}
	return time.Duration(n) * (time.Second / ticks), comm, nil
}

// maxProcfs is the most that is read of a file. An environment has 6 MiB at most
// when a program is started (execve(2)), but a process may show any memory as its
// own (prctl(2), PR_SET_MM), and one without privilege can.
const maxProcfs = 8 << 20

var errTooLong = fmt.Errorf("it has more than %d bytes", maxProcfs)

// read reads a file of procfs into a buffer that the scan keeps. Of a thread
// that has ended, and for which nobody waited yet, an environment is empty. What
// is too long comes with errTooLong, as far as it is read.
func (s *scan) read(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	for n := 0; ; {
		if n > maxProcfs {
			return s.buf[:maxProcfs], &os.PathError{Op: "read", Path: path, Err: errTooLong}
		}
		if n == len(s.buf) {
			s.buf = append(s.buf, make([]byte, max(16<<10, len(s.buf)))...)
		}
		m, err := unix.Read(fd, s.buf[n:])
		switch {
		case err != nil:
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		case m == 0:
			return s.buf[:n], nil
		default:
			n += m
		}
	}
}
