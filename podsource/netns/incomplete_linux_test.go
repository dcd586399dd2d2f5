// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// seesSome checks that the answer has these addresses, declares that it has all ADDs,
// and declares that it has all addresses, and speaks of the networks of its options, only
// if complete is set.
func seesSome(t *testing.T, s *Source, reason string, complete bool, want ...string) {
	t.Helper()
	s.opts.Networks = []string{"podnet"}
	all, err := s.Pods(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", reason, err)
	}
	if diff := cmp.Diff(want, answer(all)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", reason, diff)
	}
	adds, addresses := parts(t, all)
	if len(adds.SeesADDs) == 0 || addresses.SeesAddresses != complete || !addresses.Supplementary || (addresses.Note == "") != complete {
		t.Errorf("%s: ADDs in %v, addresses %t, want all and %t; %q", reason, adds.SeesADDs, addresses.SeesAddresses, complete, addresses.Note)
	}
	if (len(addresses.Networks) == 1) != complete {
		t.Errorf("%s: it speaks of the networks %v; all addresses are seen: %t", reason, addresses.Networks, complete)
	}
}

// A namespace can't be opened at its mount point, as on FUSE, and may be found
// elsewhere.
func TestMountCannotBeOpened(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	if err := os.MkdirAll("/run/deep/down", 0o755); err != nil {
		t.Fatal(err)
	}
	mountNamespace(t, "/run/deep/down/cni-1", "10.0.0.3")
	if err := os.WriteFile("/run/netns/again", nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/run/deep/down/cni-1", "/run/netns/again", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Mount("over", "/run/deep", "tmpfs", 0, ""), os.Symlink("down", "/run/deep/down")); err != nil {
		t.Fatal(err)
	}
	seesSome(t, nested(t), "it is found elsewhere", true, "10.0.0.2", "10.0.0.3")
	unmount(t, "/run/netns/again")
	s := nested(t)
	seesSome(t, s, "it is found nowhere", false, "10.0.0.2")
	if lives, err := s.Living(t.Context()); err != nil || !livesSurely(lives, "/run/netns/cni-1", time.Now()) {
		t.Errorf("Living reports that it does not exist, %v", err)
	}
	if err := errors.Join(os.Remove("/run/deep/down"), os.WriteFile("/run/deep/down", nil, 0o444)); err != nil {
		t.Fatal(err)
	}
	seesSome(t, nested(t), "it is hidden, and no process is in it", true, "10.0.0.2")
	unmount(t, "/run/deep")
	seesSome(t, nested(t), "it can be opened again", true, "10.0.0.2", "10.0.0.3")
}

// Another file at the mount point of a namespace has its inode number, as is possible
// on FUSE: it is not opened.
func TestAnotherFileOfItsNumber(t *testing.T) {
	path := t.TempDir() + "/web"
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	inode, err := inodeOf(path)
	if err != nil {
		t.Fatal(err)
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(root) }()
	if ns, err := openMount(root, namespaceMount{inode, path}); !errors.Is(err, errHidden) {
		t.Errorf("got %d, %v, want %v", ns, err, errHidden)
	}
}

// A namespace is not read twice, as when a thread enters one that was read.
func TestFoundAlready(t *testing.T) {
	const file = "/proc/self/ns/net"
	inode, err := inodeOf(file)
	if err != nil {
		t.Fatal(err)
	}
	s := scan{found: map[uint64]bool{inode: true}, setns: func(int, int) error { return unix.EINVAL }}
	if err := s.readNetNSFile(file, "of process 7"); err != nil {
		t.Error(err)
	}
}

// A lack of descriptors or memory is an error, and another failure to open a namespace
// is not.
func TestNoteUnreadable(t *testing.T) {
	s := scan{unreadable: make(map[uint64]podsource.Pod)}
	for _, err := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if got := ignoreExited(t.TempDir(), s.noteUnreadable(7, "mounted at /run/netns/web", err)); !errors.Is(got, err) || len(s.unreadable) > 0 {
			t.Errorf("got %v, want %v", got, err)
		}
	}
	for _, err := range []error{unix.EACCES, unix.EIO, unix.ENOTCONN, unix.ELOOP} {
		if got := s.noteUnreadable(7, "mounted at /run/netns/web", err); got != nil || len(s.unreadable) != 1 {
			t.Errorf("%v: got %v, want no error", err, got)
		}
	}
}

// A process sees more mounts than are read. Those that are read count.
func TestMountsAreTooMany(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	mountNamespace(t, "/run/netns/cni-1", "10.0.0.3")
	dir := "/run" + strings.Repeat("/"+strings.Repeat(" ", 255), 15) // a space takes four bytes there
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const mounts = maxProcfs/(4*15*255) + 1
	for range mounts {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	s := nested(t)
	seesSome(t, s, "too many", false, "10.0.0.2", "10.0.0.3")
	lives, err := s.Living(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if may, sure := lives("/run/netns/cni-2", time.Now()); !may || sure {
		t.Error("it may be among the mounts that were not read: want true, and not certain")
	}
	if may, _ := lives("/run/netns/cni-2", time.Unix(1, 0)); may {
		t.Error("a namespace from before the boot exists")
	}
}

// The answer is complete if the last scan is, whatever the scans before it missed.
func TestSeenInTheEnd(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	sc, err := nested(t).scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sc.truncated, sc.unreadable[1] = true, podsource.Pod{}
	if _, missing := sc.all(); missing == "" {
		t.Error("something could not be read, and the answer is complete")
	}
	if err := sc.processes(t.Context()); err != nil {
		t.Fatal(err)
	}
	sc.maxMountText = 1
	if err := sc.processes(t.Context()); err != nil || !sc.truncated {
		t.Errorf("more of the mounts was read than the limit: %v", err)
	}
	sc.maxMountText = maxProcfs
	if err := sc.processes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pods, missing := sc.all(); missing != "" || len(pods) != 1 {
		t.Errorf("got %v, %q", pods, missing)
	}
}

// The limit of the text of the mounts is for one reading of all processes. If all readings
// of a call counted together, a node could lose its declaration for ever, and so the end of
// its leaks.
func TestLimitOfTheMountsOfEachReading(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	sc, err := nested(t).scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sc.maxMountText = sc.mountText * 3 / 2
	for range 2 {
		if err := sc.processes(t.Context()); err != nil || sc.truncated {
			t.Errorf("mounts of %d bytes, with a limit of %d: %v, truncated: %t", sc.mountText, sc.maxMountText, err, sc.truncated)
		}
	}
}

// The addresses of one namespace change all the time.
func TestNamespaceChangesAllTheTime(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	pid, _ := startPod(t, "10.0.0.3")
	changing, err := nsInode(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	s := nested(t)
	interrupted := 0
	s.setns = func(fd, kind int) error {
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			return err
		}
		if stat.Ino == changing && interrupted != 0 {
			interrupted--
			return podsource.ErrIncomplete
		}
		return unix.Setns(fd, kind)
	}
	interrupted = minScans - 1
	seesSome(t, s, "the last scan has all", true, "10.0.0.2", "10.0.0.3")
	interrupted = -1
	seesSome(t, s, "each scan is interrupted", false, "10.0.0.2")
}

// The addresses found in a namespace that changes all the time count.
func TestAll(t *testing.T) {
	s := scan{found: make(map[uint64]bool), unreadable: make(map[uint64]podsource.Pod)}
	check := func(reason string, complete bool, want ...string) {
		t.Helper()
		pods, missing := s.all()
		var got []string
		for _, p := range pods {
			got = append(got, fmt.Sprintf("%v, %s", p.IPs, p.Origin))
		}
		if diff := cmp.Diff(want, got); diff != "" || (missing == "") != complete {
			t.Errorf("%s: missing is %q, want all: %t (-want +got):\n%s", reason, missing, complete, diff)
		}
	}
	note := func(inode uint64, ip string, err error) {
		t.Helper()
		if err := s.note(inode, "of process 1", []netip.Addr{netip.MustParseAddr(ip)}, err); err != nil {
			t.Fatal(err)
		}
	}
	note(7, "10.0.0.2", nil)
	const first = "[10.0.0.2], network namespace 7, of process 1"
	check("all is found", true, first)
	note(8, "10.0.0.3", podsource.ErrIncomplete)
	s.unreadable[9] = podsource.Pod{}
	check("one changes, and one can't be opened", false, first, "[10.0.0.3], network namespace 8, of process 1")
	if _, missing := s.all(); missing != "2 network namespaces could not be read, among them 9" {
		t.Errorf("two are missing: got %q", missing)
	}
	note(8, "10.0.0.4", nil)
	check("one is found, and a later one can't be opened", false, first, "[10.0.0.4], network namespace 8, of process 1")
	note(9, "10.0.0.5", nil)
	check("they are found in the end", true, first, "[10.0.0.4], network namespace 8, of process 1", "[10.0.0.5], network namespace 9, of process 1")
}

func TestDump(t *testing.T) {
	for _, row := range []struct {
		reason string
		errs   []error // of each try; the last one repeats
		want   error
		n      int
	}{
		{"they don't change", []error{nil}, nil, 1},
		{"they changed once", []error{netlink.ErrDumpInterrupted, nil}, nil, 1},
		{"they change all the time", []error{netlink.ErrDumpInterrupted}, podsource.ErrIncomplete, 1},
		{"the kernel refuses", []error{unix.ENOBUFS}, unix.ENOBUFS, 0},
	} {
		ips, err := dump(func(netlink.Link, int) ([]netlink.Addr, error) {
			err := row.errs[0]
			row.errs = row.errs[min(1, len(row.errs)-1):]
			return []netlink.Addr{{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 0, 2), Mask: net.CIDRMask(32, 32)}}}, err
		})
		if len(ips) != row.n || !errors.Is(err, row.want) {
			t.Errorf("got %v, %v, want %v: %s", ips, err, row.want, row.reason)
		}
	}
}
