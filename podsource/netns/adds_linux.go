// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"fmt"
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

// A cniADD is a process with the environment of a CNI ADD (CNI spec, "Parameters").
type cniADD struct {
	pid          string
	pidNS        uint64 // zero if it could not be read
	containerIDs []string
	netNS        string // CNI_NETNS
}

// readEnvironment notes the ADD that a process runs, and the network namespace that it is in.
func (s *scan) readEnvironment(pid, dir string) {
	var text []byte
	// Without an environment it was started so, or is a kernel thread, or it has ended. While it ends it
	// may still be in a namespace (do_exit in the kernel's kernel/exit.c), so a second thread must show it.
	s.anyThread(pid, dir, func(thread string) bool {
		text = s.read(thread, "/environ", maxEnvironment)
		inode := s.nsInode(thread, "/ns/net")
		s.withProcess[inode] = true
		return len(text) > 0 || inode != 0 && thread != dir
	})
	const add = "CNI_COMMAND=ADD\x00"
	isADD := bytes.HasPrefix(text, []byte(add)) || bytes.Contains(text, []byte("\x00"+add))
	if !isADD && len(text) < maxEnvironment { // as nearly all
		return
	}
	pidNS := s.nsInode(dir, "/ns/pid")
	if len(text) == maxEnvironment && pidNS == s.pidNS { // it may be longer
		s.late["process "+pid+" can't be read: its environment has 1 MiB or more"] = true
	}
	if isADD {
		s.adds = append(s.adds, parseADD(text, pid, pidNS))
	}
}

// validID matches container IDs that plugins accept (cni, pkg/utils
// ValidateContainerID).
var validID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// parseADD returns the network namespace and the container IDs of the ADD in an
// environment. If a variable is set several times, some programs use the first value
// and some the last, so both are returned.
func parseADD(text []byte, pid string, pidNS uint64) cniADD {
	a := cniADD{pid: pid, pidNS: pidNS}
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		if !bytes.HasPrefix(entry, []byte("CNI_")) || len(entry) > maxEntry {
			continue // it may be as long as the environment
		}
		name, value, _ := strings.Cut(string(entry), "=")
		switch name {
		case "CNI_CONTAINERID":
			a.containerIDs = append(a.containerIDs[:min(1, len(a.containerIDs))], value)
		case "CNI_NETNS":
			a.netNS = value
		}
	}
	a.containerIDs = slices.DeleteFunc(a.containerIDs, func(id string) bool { return !validID.MatchString(id) })
	return a
}

// noteClaims notes the container IDs of the ADDs in flight, each with a process that
// runs it. It leaves out processes that can't be plugins (hazard 78): a daemon that inherited
// the variables, and a pod whose owner sets them.
//
// In a namespace that an ADD sets up an interface may lack its address, since the ADD claims
// its container. Only ADDs in the node's PID namespace are trusted here: a tenant may set
// CNI_NETNS to any namespace.
func (s *scan) noteClaims() {
	for _, a := range s.adds {
		by, claims, netNS := "process "+a.pid, true, s.netNSAt(a.netNS)
		s.process(a.pid, func(_, dir string) {
			if comm, _, started, ok := s.readStat(dir); ok { // else it has ended since, and still counts
				by += " (" + printable(comm) + ")"
				claims = boottime.Since()-started <= s.opts.LongestADD && !s.inClaimedNetNS(a, dir, netNS) // also if the time since the boot is unknown
			}
		})
		if !claims {
			continue
		}
		for _, id := range a.containerIDs {
			s.claims[id] = by
		}
		if a.pidNS == s.pidNS {
			delete(s.unaddressed, netNS)
		}
	}
}

// inClaimedNetNS reports whether a process is outside the node's PID namespace, and
// all its threads are in the network namespace that it claims to set up. A plugin that
// works in that namespace is in the node's PID namespace. In doubt it reports false.
func (s *scan) inClaimedNetNS(a cniADD, dir string, claimed uint64) bool {
	if a.pidNS == 0 || a.pidNS == s.pidNS {
		return false
	}
	if a.netNS == "/proc/self/ns/net" || a.netNS == "/proc/thread-self/ns/net" {
		return true
	}
	threads := s.threads(dir)
	return claimed != 0 && len(threads) > 0 && !slices.ContainsFunc(threads, func(thread string) bool {
		return s.nsInode(thread, "/ns/net") != claimed
	})
}

// netNSAt returns the network namespace at the path in CNI_NETNS, or zero if it is not known or not
// certain. The directory of a mount may have another path in another mount namespace, so only the
// last element of the path counts.
func (s *scan) netNSAt(netNS string) (inode uint64) {
	netNS = path.Clean(netNS)
	if m := processPath.FindStringSubmatch(netNS); m != nil {
		s.within("process "+m[1], func() { inode = s.nsInode(s.opts.Proc+"/"+m[1], "/ns/net") })
		return inode
	}
	return s.mountedAs[path.Base(netNS)]
}

// processPath matches the clean path of the network namespace of a process or thread, in a
// procfs that is mounted anywhere: /proc/4711/ns/net,
// /host/proc/4711/task/4712/ns/net.
var processPath = regexp.MustCompile(`(?:^|/)proc/([0-9]+)/(?:task/[0-9]+/)?ns/net$`)

// readStat returns the command name of a process or thread, its parent, and when it started,
// since the node's boot (proc(5), /proc/<pid>/stat).
func (s *scan) readStat(dir string) (comm, parent string, started time.Duration, ok bool) {
	text := s.read(dir, "/stat", maxProcfs)
	if len(text) == 0 { // it has ended, or there is an error
		return "", "", 0, false
	}
	m := statLine.FindStringSubmatch(string(text))
	if m == nil {
		return "", "", 0, s.could(dir, "/stat", fmt.Errorf("%q is not the status of a process", text))
	}
	n, _ := strconv.ParseInt(m[3], 10, 64) // it has 18 digits at most
	return m[1], m[2], time.Duration(n) * (time.Second / ticks), true
}

// statLine matches the PID, the name in parentheses, which may contain any character, the state, the
// parent, 17 more fields, and the start.
var statLine = regexp.MustCompile(`(?s)^[0-9]+ \((.*)\) [^ ] ([0-9]+) (?:-?[0-9]+ ){17}([0-9]{1,18})\b`)

// How many bytes of a file and of an environment are read at most. Even an unprivileged process
// can present any of its memory as its environment (prctl(2), PR_SET_MM). A plugin has that of
// its runtime, which is far shorter, and is in the node's PID namespace. Of a longer one there it
// is not known whether it is an ADD; one of a tenant, in another PID namespace, is no ADD.
const maxProcfs, maxEnvironment = 8 << 20, 1 << 20

// maxEntry is how long a variable is at most that an ADD is read from: a path has at most 4 KiB
// (PATH_MAX), and runtimes use IDs of 64 characters.
const maxEntry = 4 << 10

// read reads a file of a process or thread, up to a limit in bytes. The result is valid until the
// next read. It is empty after an error, and the environment of a zombie is, too.
func (s *scan) read(dir, name string, limit int) []byte {
	fd, ok := s.open(dir, name, unix.O_RDONLY)
	if !ok {
		return nil
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	text, err := s.buf[:0], error(nil)
	for end := false; !end && len(text) < limit; {
		text = slices.Grow(text, 16<<10)
		var n int
		part := text[len(text):min(limit, cap(text))]
		n, err = unix.Read(fd, part)
		text = text[:len(text)+max(n, 0)]
		// Of these files only mounts end a reading early (environ_read in the kernel's fs/proc/base.c).
		end = n <= 0 || n < len(part) && name != "/mountinfo"
	}
	s.buf = text
	if !s.could(dir, name, err) {
		return nil
	}
	return text
}

// printable makes a tenant's text, such as a command name or a mount point, safe for a report: it is
// cut to 128 characters, and quoted. So no part of it looks like the report's own text.
func printable(text string) string { return fmt.Sprintf("%+.128q", text) }
