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

// ticks is the number of clock ticks per second in /proc/<pid>/stat: USER_HZ, which
// is 100 on all architectures that Go has (proc(5), sysconf(3)).
const ticks = 100

// A cniADD is a process with the environment of a CNI ADD. A runtime calls a plugin
// with CNI_COMMAND and CNI_CONTAINERID in its environment (CNI spec, "Parameters").
type cniADD struct {
	pid         string
	containerID string
	netNS       string   // CNI_NETNS
	netNSInodes []uint64 // the network namespaces of its threads
	inNodePIDNS bool     // known to be in the node's PID namespace, so not in a container
}

// readEnvironment notes the ADD that a process runs.
func (s *scan) readEnvironment(pid string) error {
	dir := s.proc + "/" + pid
	var text []byte
	_, err := anyThread(dir, func(dir string) (err error) {
		text, err = s.read(dir + "/environ")
		if err == nil && len(text) == 0 {
			return errExited // or it is a kernel thread, or was started without one
		}
		return err
	})
	if errors.Is(err, errTooLong) { // no runtime starts a plugin with that
		return nil
	}
	if err != nil {
		return err
	}
	if !bytes.Contains(text, []byte("CNI_COMMAND=ADD\x00")) { // nearly all processes
		return nil
	}
	netNS, containerIDs := parseADD(text)
	inodes, err := s.threadNetNS(dir)
	if err != nil {
		return err
	}
	nodePIDNS, _ := nsInode(s.proc + "/1/ns/pid") // after an error zero, which no namespace has
	pidNS, err := nsInode(dir + "/ns/pid")
	inNodePIDNS := err == nil && pidNS == nodePIDNS
	for _, containerID := range containerIDs {
		s.adds = append(s.adds, cniADD{pid, containerID, netNS, inodes, inNodePIDNS})
	}
	return nil
}

// parseADD returns the network namespace and the container IDs of the ADD in an
// environment. If a variable is set several times, some programs use the first value
// and some the last, so both are returned.
func parseADD(text []byte) (netNS string, containerIDs []string) {
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
	// No plugin accepts other IDs (cni, pkg/utils ValidateContainerID).
	containerIDs = slices.DeleteFunc(containerIDs, func(id string) bool { return !add || !validID(id) })
	return netNS, containerIDs
}

// threadNetNS returns the network namespaces of a process's threads.
func (s *scan) threadNetNS(dir string) (inodes []uint64, err error) {
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

// claims returns the container IDs of the ADDs in flight, each with a process that
// runs it. It leaves out processes that can't be plugins (hazard 78): those that have
// run for longer than any ADD, such as a daemon that inherited the variables, and
// those of a container that are already in the namespace that they claim to set up,
// such as a pod whose owner sets the variables.
func (s *scan) claims(longest time.Duration) (map[string]string, error) {
	claims := make(map[string]string)
	for _, a := range s.adds {
		started, comm, err := startTime(s.proc + "/" + a.pid)
		if err != nil {
			if err := ignoreExited(s.proc+"/"+a.pid, err); err != nil {
				return nil, fmt.Errorf("reading process %s: %w", a.pid, hint(err))
			}
			claims[a.containerID] = "process " + a.pid // it has ended since, and still counts
			s.inFlight = append(s.inFlight, a)
			continue
		}
		if boottime.Since()-started <= longest && !s.inClaimedNetNS(a) { // true if the time since the boot is unknown
			claims[a.containerID] = fmt.Sprintf("process %s (%s)", a.pid, printable(comm))
			s.inFlight = append(s.inFlight, a)
		}
	}
	return claims, nil
}

// inClaimedNetNS reports whether a process is outside the node's PID namespace, and
// all its threads are in the network namespace that it claims to set up. A plugin that
// works in that namespace is in the node's PID namespace. In doubt it reports false.
func (s *scan) inClaimedNetNS(a cniADD) bool {
	nodePIDNS, nodeErr := nsInode(s.proc + "/1/ns/pid")
	pidNS, err := nsInode(s.proc + "/" + a.pid + "/ns/pid")
	if nodeErr != nil || err != nil || pidNS == nodePIDNS {
		return false
	}
	if a.netNS == "/proc/self/ns/net" || a.netNS == "/proc/thread-self/ns/net" {
		return true
	}
	inodes := s.namespacesAt(a.netNS)
	return len(inodes) == 1 && len(a.netNSInodes) == 1 && inodes[0] == a.netNSInodes[0]
}

// namespacesAt returns the network namespaces that may be at the path in CNI_NETNS.
func (s *scan) namespacesAt(netNS string) []uint64 {
	if pid, ok := pidInPath(netNS); ok {
		inode, _ := nsInode(s.proc + "/" + pid + "/ns/net") // after an error zero, which no namespace has
		return []uint64{inode}
	}
	return s.mountedAt[cleanPath(netNS)]
}

// cleanPath returns one spelling of a path: /var/run is /run.
func cleanPath(p string) string {
	p = path.Clean(p)
	if rest, ok := strings.CutPrefix(p, "/var/run/"); ok {
		return "/run/" + rest
	}
	return p
}

// processPath matches the path of the network namespace of a process or thread, in a
// procfs that is mounted anywhere: /proc/4711/ns/net,
// /host/proc/4711/task/4712/ns/net.
var processPath = regexp.MustCompile(`(?:^|/)proc/([0-9]+)/(?:task/[0-9]+/)?ns/net$`)

// pidInPath returns the PID in such a path.
func pidInPath(p string) (pid string, ok bool) {
	if m := processPath.FindStringSubmatch(path.Clean(p)); m != nil {
		return m[1], true
	}
	return "", false
}

// startTime returns when a process or thread started, since the node's boot, and its
// command name.
func startTime(dir string) (since time.Duration, comm string, err error) {
	comm, fields, err := readStat(dir)
	if err != nil {
		return 0, "", err
	}
	n, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("%s/stat: reading the start time: %w", dir, err)
	}
	return time.Duration(n) * (time.Second / ticks), comm, nil
}

// maxProcfs is how many bytes of a file are read at most. A program starts with an
// environment of at most 6 MiB (execve(2)), but even an unprivileged process can
// present any of its memory as its environment (prctl(2), PR_SET_MM).
const maxProcfs = 8 << 20

var errTooLong = fmt.Errorf("it has more than %d bytes", maxProcfs)

// read reads a file of procfs. The result is valid until the next read. The
// environment of a zombie is empty. If the file is longer than maxProcfs, read returns
// its beginning and errTooLong.
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
