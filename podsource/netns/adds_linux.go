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
	"syscall"
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
	at          []uint64 // the network namespaces that may be at CNI_NETNS
	inNodePIDNS bool     // known to be in the node's PID namespace, so not in a container
}

// readEnvironment notes the ADD that a process runs.
func (s *scan) readEnvironment(pid, dir string) {
	var text []byte
	s.anyThread(pid, dir, func(dir string) bool {
		var whole bool
		text, whole = s.read(dir, "/environ")
		if len(text) > 0 && !whole { // no runtime starts a plugin with that
			text = nil
			return true
		}
		return len(text) > 0 // else it has ended, or is a kernel thread, or was started without one
	})
	if !bytes.Contains(text, []byte("CNI_COMMAND=ADD\x00")) { // nearly all processes
		return
	}
	netNS, containerIDs := parseADD(text)
	var inodes []uint64 // in doubt none
	s.eachNetNS(s.threads(dir), func(_ string, inode uint64) {
		if !slices.Contains(inodes, inode) {
			inodes = append(inodes, inode)
		}
	})
	nodePIDNS, _ := s.nsInode(s.opts.Proc, "/1/ns/pid") // after an error zero, which no namespace has
	pidNS, ok := s.nsInode(dir, "/ns/pid")
	for _, containerID := range containerIDs {
		s.adds = append(s.adds, cniADD{pid, containerID, netNS, inodes, nil, ok && pidNS == nodePIDNS})
	}
}

// validID matches container IDs that plugins accept (cni, pkg/utils
// ValidateContainerID).
var validID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

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
	containerIDs = slices.DeleteFunc(containerIDs, func(id string) bool { return !add || !validID.MatchString(id) })
	return netNS, containerIDs
}

// noteClaims notes the container IDs of the ADDs in flight, each with a process that
// runs it. It leaves out processes that can't be plugins (hazard 78): those that have
// run for longer than any ADD, such as a daemon that inherited the variables, and
// those of a container that are already in the namespace that they claim to set up,
// such as a pod whose owner sets the variables.
func (s *scan) noteClaims() error {
	var inFlight []cniADD
	for _, a := range s.adds {
		by, claims := "process "+a.pid, true
		a.at = s.namespacesAt(a.netNS)
		err := s.process(a.pid, func(_, dir string) {
			started, comm, ok := s.startTime(dir)
			if !ok { // it has ended since, and still counts
				return
			}
			by += " (" + printable(comm) + ")"
			claims = boottime.Since()-started <= s.opts.LongestADD && !s.inClaimedNetNS(a) // also if the time since the boot is unknown
		})
		if err != nil {
			return err
		}
		if claims {
			s.claims[a.containerID] = by
			inFlight = append(inFlight, a)
		}
	}
	s.adds = inFlight
	return nil
}

// inClaimedNetNS reports whether a process is outside the node's PID namespace, and
// all its threads are in the network namespace that it claims to set up. A plugin that
// works in that namespace is in the node's PID namespace. In doubt it reports false.
func (s *scan) inClaimedNetNS(a cniADD) bool {
	nodePIDNS, nodeOK := s.nsInode(s.opts.Proc, "/1/ns/pid")
	pidNS, ok := s.nsInode(s.opts.Proc+"/"+a.pid, "/ns/pid")
	if !nodeOK || !ok || pidNS == nodePIDNS {
		return false
	}
	if a.netNS == "/proc/self/ns/net" || a.netNS == "/proc/thread-self/ns/net" {
		return true
	}
	return len(a.at) == 1 && len(a.netNSInodes) == 1 && a.at[0] == a.netNSInodes[0]
}

// namespacesAt returns the network namespaces that may be at the path in CNI_NETNS.
func (s *scan) namespacesAt(netNS string) []uint64 {
	if pid, ok := pidInPath(netNS); ok {
		var inode uint64 // after an error zero, which no namespace has
		s.within("process "+pid, func() { inode, _ = s.nsInode(s.opts.Proc+"/"+pid, "/ns/net") })
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
func (s *scan) startTime(dir string) (since time.Duration, comm string, ok bool) {
	comm, fields, ok := s.readStat(dir)
	if !ok {
		return 0, "", false
	}
	n, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		s.err = fmt.Errorf("%s/stat: reading the start time: %w", dir, err)
	}
	return time.Duration(n) * (time.Second / ticks), comm, err == nil
}

// readStat returns the command name of a process or thread, and the fields after it:
// state, parent and so on (proc(5), /proc/<pid>/stat).
func (s *scan) readStat(dir string) (comm string, fields []string, ok bool) {
	text, ok := s.read(dir, "/stat")
	if !ok {
		return "", nil, false
	}
	// The second field is in parentheses and may contain any character.
	if end := strings.LastIndex(string(text), ") "); end >= 0 {
		_, comm, _ = strings.Cut(string(text[:end]), "(")
		fields = strings.Fields(string(text[end+1:]))
	}
	if len(fields) < 20 {
		s.err = fmt.Errorf("%s/stat: %q is not the status of a process", dir, text)
		return "", nil, false
	}
	return comm, fields, true
}

// maxProcfs is how many bytes of a file are read at most. A program starts with an
// environment of at most 6 MiB (execve(2)), but even an unprivileged process can
// present any of its memory as its environment (prctl(2), PR_SET_MM).
const maxProcfs = 8 << 20

// read reads a file of a process or thread, at most maxProcfs bytes, and reports whether
// that is all. The result is valid until the next read. The environment of a zombie is
// empty.
func (s *scan) read(dir, name string) (text []byte, whole bool) {
	n := 0
	fd, err := unix.Open(dir+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	defer func() { _ = unix.Close(fd) }()                       // it was only read
	if errors.Is(err, syscall.EINVAL) && name == "/mountinfo" { // the thread has no mount namespace any more
		err = syscall.ESRCH
	}
	for end := false; err == nil && !end && n <= maxProcfs; {
		if n == len(s.buf) {
			s.buf = append(s.buf, make([]byte, max(16<<10, n))...)
		}
		var m int
		m, err = unix.Read(fd, s.buf[n:])
		n += max(m, 0)
		// Only the end of an environment ends its reading early (environ_read in the kernel's fs/proc/base.c).
		end = m <= 0 || name == "/environ" && n < len(s.buf)
	}
	if err != nil {
		err = &os.PathError{Op: "read", Path: dir + name, Err: err}
	}
	if !s.could(dir, err) {
		return nil, false
	}
	return s.buf[:min(n, maxProcfs)], n <= maxProcfs
}

// maxPrintable is the length of a tenant's text in a report, in bytes before quoting.
const maxPrintable = 128

// printable makes a tenant's text, such as a command name or a mount point, safe for a
// report: it is cut, and quoted unless it is a plain word. So no part of it looks like
// the report's own text.
func printable(text string) string {
	cut := ""
	if len(text) > maxPrintable {
		text, cut = text[:maxPrintable], "..."
	}
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%="
	if text == "" || strings.Trim(text, plain) != "" {
		text = strconv.QuoteToASCII(text)
	}
	return text + cut
}
