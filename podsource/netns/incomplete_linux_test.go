// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
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
	err := unix.Mkfifo(path, 0o600)
	inode, statErr := inodeAt(path)
	root, openErr := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err := errors.Join(err, statErr, openErr); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(root) }()
	if ns, err := openMount(root, namespaceMount{inode, path}); ns >= 0 || err != nil {
		t.Errorf("got %d, %v, want none", ns, err)
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
	unmount(t, "/run/netns/cni-1")
	seesSome(t, s, "too many, and none is a namespace", false, "10.0.0.2")
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

// The answer is complete if the last reading of all processes is, whatever those before it
// missed. The limit of the text of the mounts is for one reading: if all counted together, a
// node could lose its declaration for ever, and so the end of its leaks.
func TestSeenInTheEnd(t *testing.T) {
	if !onNode(t) {
		return
	}
	ownMounts := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	start(t, ownMounts)
	mountNamespace(t, "/run/netns/cni-1", "10.0.0.2")
	start(t, ownMounts) // it has a copy of that mount
	sc := nested(t).newScan(t.Context())
	if _, err := sc.watch(t.Context(), time.Minute, sc.readNode); err != nil {
		t.Fatal(err)
	}
	none := 0
	for _, is := range sc.readRoots {
		if is {
			none++
		}
	}
	if none != 1 {
		t.Errorf("%d roots without a namespace are not read again, want one: %v", none, sc.readRoots)
	}
	text := sc.mountText
	sc.missing, sc.found[1] = "mounts", podsource.Pod{}
	if _, missing := sc.all(); missing == "" {
		t.Error("something could not be read, and the answer is complete")
	}
	for _, row := range []struct {
		limit     int
		truncated bool
	}{{1, true}, {text - 1, true}, {text * 3 / 2, false}, {text, false}} {
		sc.maxMountText = row.limit
		if sc.processes(); sc.err != nil || (sc.missing != "") != row.truncated || row.limit == 1 && sc.mountText == text {
			t.Errorf("mounts of %d bytes, with a limit of %d: %v, truncated: %q", sc.mountText, row.limit, sc.err, sc.missing)
		}
	}
	if pods, missing := sc.all(); missing != "" || len(pods) != 1 {
		t.Errorf("got %v, %q", pods, missing)
	}
}

// The last process of a namespace ends before the namespace is read, and leaves a mount of it
// where no namespace was mounted. The mount may come from a younger process, after that was read.
func TestMovesToAMount(t *testing.T) {
	if !onNode(t) {
		return
	}
	mountNamespace(t, "/run/netns/old", "10.0.0.4")
	start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}) // only this one sees it in the end
	unmount(t, "/run/netns/old")
	for _, twice := range []bool{false, true} {
		first, stopFirst := startPod(t, "10.0.0.3")
		_, stopNear := startPod(t, "10.0.0.2") // the youngest are read first
		s, n, pid, stop := nested(t), 0, first, stopFirst
		s.setns = func(fd, kind int) error {
			switch n++; {
			case n == 1 && twice: // the namespace of the youngest is entered
				pid, stop = enter(t, first, nil)
				stopFirst()
			case n == 1, n == 5 && twice: // the oldest mount is entered, and others were looked for
				bindNamespace(t, pid, "/run/netns/moved")
				stop()
			}
			return unix.Setns(fd, kind)
		}
		seesSome(t, s, fmt.Sprintf("it has moved, twice: %t", twice), true, "10.0.0.2", "10.0.0.3", "10.0.0.4")
		unmount(t, "/run/netns/moved")
		stopNear()
	}
}

// The processes of a container start others and end all the time.
func TestProcessesTakeTurns(t *testing.T) {
	if !onNode(t) {
		return
	}
	pid, stop := startPod(t, "10.0.0.2")
	sc, n := nested(t).newScan(t.Context()), 0
	sc.ended = func() error {
		if n++; n%3 == 0 { // process 1 is read, the last of three
			next, stopNext := enter(t, pid, nil)
			stop()
			pid, stop = next, stopNext
		}
		return nil
	}
	_, err := sc.watch(t.Context(), time.Minute, func() error { sc.processes(); return sc.err })
	if pods, missing := sc.all(); err != nil || missing != "" || len(pods) != 1 {
		t.Errorf("got %v, %q, %v, want the container", pods, missing, err)
	}
}

// The addresses of one namespace change all the time.
func TestNamespaceChangesAllTheTime(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	pid, _ := startPod(t, "10.0.0.3")
	changing, _ := netNSOf(fmt.Sprintf("/proc/%d", pid))
	s := nested(t)
	interrupted := 0
	s.setns = func(fd, kind int) error {
		if inode, _ := inodeAt(fmt.Sprintf("/proc/self/fd/%d", fd)); inode == changing && interrupted != 0 {
			interrupted--
			return netlink.ErrDumpInterrupted
		}
		return unix.Setns(fd, kind)
	}
	interrupted = minScans - 1
	seesSome(t, s, "the last scan has all", true, "10.0.0.2", "10.0.0.3")
	interrupted = -1
	seesSome(t, s, "each scan is interrupted", false, "10.0.0.2")
}

// The addresses found in a namespace that changes all the time count, and those that were
// found before a later failure.
func TestAll(t *testing.T) {
	s := scanOf(t, t.TempDir())
	check := func(reason, want string, origins ...string) {
		t.Helper()
		pods, missing := s.all()
		var got []string
		for _, p := range pods {
			got = append(got, fmt.Sprintf("%v %s", p.IPs, p.Origin))
			if p.NotRunning != strings.HasSuffix(p.Origin, ", without a process") {
				t.Errorf("%s: %+v", reason, p)
			}
		}
		if diff := cmp.Diff(origins, got); diff != "" || missing != want {
			t.Errorf("%s: missing is %q, want %q (-want +got):\n%s", reason, missing, want, diff)
		}
	}
	note := func(inode uint64, ip string, err error) {
		s.note(inode, "mounted at /run/netns/a", []netip.Addr{netip.MustParseAddr(ip)}, err)
	}
	s.withProcess[7] = true
	note(7, "10.0.0.2", nil)
	const first, of8 = "[10.0.0.2] network namespace 7, mounted at /run/netns/a", " network namespace 8, mounted at /run/netns/a, without a process"
	check("all is found", "", first)
	note(8, "10.0.0.3", netlink.ErrDumpInterrupted)
	s.note(8, "mounted at /run/netns/b", nil, unix.EACCES)
	s.note(9, "mounted at /run/netns/c", nil, unix.EACCES)
	check("one changes, and one can't be opened", "2 network namespaces could not be read, among them network namespace 8, mounted at /run/netns/a", first, "[10.0.0.3]"+of8)
	note(8, "10.0.0.4", nil)
	s.note(9, "mounted at /run/netns/c", nil, nil)
	check("they are found in the end", "", first, "[10.0.0.4]"+of8)
	s.missing = "some mounts are not read"
	check(s.missing, s.missing, first, "[10.0.0.4]"+of8)
	s.hangs["process 4711"] = 1
	s.within("process 4711", func() { t.Error("it is read again") })
	check("a process that can't be read may be in any of them", "process 4711 can't be read in time", first, "[10.0.0.4] network namespace 8, mounted at /run/netns/a")
}

// A tenant disturbs the listing of its addresses. Without an error the list has the live one.
func TestListingIsDisturbed(t *testing.T) {
	if !onNode(t) {
		return
	}
	const live = "10.9.9.9"
	ips := []string{live}
	for i := range 48 { // with 127.0.0.1 they fill the kernel's first message, as those of scope link come before the live one
		ips = append(ips, fmt.Sprintf("169.254.0.%d", i+1))
	}
	pid, _ := startPod(t, ips...)
	var ended atomic.Bool
	interrupted, steps := false, 0
	for reason, disturb := range map[string]func() error{
		"an address comes and goes": func() error {
			lo, err := netlink.LinkByName("lo")
			first := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(169, 254, 0, 1).To4(), Mask: net.CIDRMask(32, 32)}, Scope: unix.RT_SCOPE_LINK}
			for h, handleErr := netlink.NewHandle(); err == nil && !ended.Load(); {
				err = errors.Join(handleErr, h.AddrDel(lo, first), h.AddrAdd(lo, first))
			}
			return err
		},
		"it sends to the socket": func() error {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
			err = errors.Join(err, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: 1 << 20}))
			for err == nil && !ended.Load() { // the first free port is the process's number
				_ = unix.Sendto(fd, make([]byte, unix.NLMSG_HDRLEN), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: uint32(os.Getpid())})
			}
			return errors.Join(err, unix.Close(fd))
		},
	} {
		ended.Store(false)
		stopped := make(chan bool)
		go func() {
			defer close(stopped)
			inPodNetNS(t, pid, disturb)
		}()
		inPodNetNS(t, pid, func() error {
			for range 2000 {
				list, err := listAddresses(make([]byte, nl.RECEIVE_BUFFER_SIZE), func() { steps++ })
				noticed := errors.Is(err, netlink.ErrDumpInterrupted)
				interrupted = interrupted || noticed
				if !noticed && (err != nil || !slices.Contains(list.ips, netip.MustParseAddr(live))) {
					return errors.Join(fmt.Errorf("%s: got %v, want %s", reason, list.ips, live), err)
				}
			}
			return nil
		})
		ended.Store(true)
		<-stopped
	}
	if !interrupted || steps != 2*2000*4 {
		t.Errorf("a listing was interrupted: %t, and %d steps were taken", interrupted, steps)
	}
}

// All IP addresses count except local ones.
func TestAddresses(t *testing.T) {
	message := func(scope uint8, attributes ...*nl.RtAttr) syscall.NetlinkMessage {
		header := nl.NewIfAddrmsg(0)
		header.Index, header.Scope = 3, scope
		m := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWADDR}, Data: header.Serialize()}
		for _, a := range attributes {
			m.Data = append(m.Data, a.Serialize()...)
		}
		return m
	}
	local := func(ip string) *nl.RtAttr { return nl.NewRtAttr(unix.IFA_LOCAL, netip.MustParseAddr(ip).AsSlice()) }
	remote := func(ip string) *nl.RtAttr { return nl.NewRtAttr(unix.IFA_ADDRESS, netip.MustParseAddr(ip).AsSlice()) }
	for _, row := range []struct {
		reason string
		m      syscall.NetlinkMessage
		want   string
	}{
		{"IPv4", message(0, remote("10.0.0.3"), local("10.0.0.3")), "[10.0.0.3]"},
		{"of a pair", message(0, remote("10.0.0.9"), local("10.0.0.3")), "[10.0.0.3]"},
		{"... in the other order", message(0, local("10.0.0.3"), remote("10.0.0.9")), "[10.0.0.3]"},
		{"IPv6", message(0, remote("fd00::2")), "[fd00::2]"},
		{"IPv4 in IPv6", message(0, remote("::ffff:10.0.0.3")), "[10.0.0.3]"},
		{"loopback", message(unix.RT_SCOPE_HOST, remote("127.0.0.1")), "[]"},
		{"link-local", message(unix.RT_SCOPE_LINK, remote("fe80::1")), "[]"},
		{"link scope, and not link-local", message(unix.RT_SCOPE_LINK, remote("10.0.0.3")), "[10.0.0.3]"},
		{"link-local, and global scope", message(0, remote("169.254.0.2")), "[169.254.0.2]"},
		{"of another protocol", message(unix.RT_SCOPE_LINK, nl.NewRtAttr(unix.IFA_LOCAL, []byte{8})), "[]"},
		{"none", message(0), "[]"},
	} {
		list := addresses{at: make(map[int]bool)}
		if err := list.add(row.m); err != nil || fmt.Sprint(list.ips) != row.want || list.at[3] != (row.want != "[]") {
			t.Errorf("%s: got %+v, %v, want %s", row.reason, list, err, row.want)
		}
	}
}

// Which interfaces may use an address that is not seen.
func TestUnaddressedOf(t *testing.T) {
	up := netlink.LinkAttrs{Name: "eth0", Index: 3, Flags: net.FlagUp}
	const none, found = "", `no address at interface "eth0"`
	for _, row := range []struct {
		reason    string
		links     []netlink.Link
		addressed bool
		want      string
	}{
		{"ptp and bridge", []netlink.Link{&netlink.Veth{LinkAttrs: up}}, false, found},
		{"macvlan", []netlink.Link{&netlink.Macvlan{LinkAttrs: up}}, false, found},
		{"ipvlan", []netlink.Link{&netlink.IPVlan{LinkAttrs: up}}, false, found},
		{"vlan", []netlink.Link{&netlink.Vlan{LinkAttrs: up}}, false, found},
		{"another kind", []netlink.Link{&netlink.Bridge{LinkAttrs: up}}, false, none},
		{"down", []netlink.Link{&netlink.Veth{}}, false, none},
		{"with an address", []netlink.Link{&netlink.Veth{LinkAttrs: up}}, true, none},
		{"the second of two", []netlink.Link{&netlink.Bridge{LinkAttrs: up}, &netlink.Veth{LinkAttrs: up}}, false, found},
	} {
		if got := unaddressedOf(row.links, map[int]bool{3: row.addressed}); got != row.want {
			t.Errorf("%s: got %q, want %q", row.reason, got, row.want)
		}
	}
}

// inPodNetNS calls do in a pod's network namespace.
func inPodNetNS(t *testing.T, pid int, do func() error) {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(onThreadOf(func() error { return unix.Setns(fd, unix.CLONE_NEWNET) }, do), unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// addAddress adds an address to an interface of a pod.
func addAddress(t *testing.T, pid int, name, ip string) {
	t.Helper()
	inPodNetNS(t, pid, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(ip)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, addr)
	})
}

// A container that removes the address from its namespace, as gVisor does, has an
// interface without address. While there is such an interface, no address is known to
// be free.
//
// Guard: [unaddressedOf] checks each interface, not each namespace, and [scan.noteClaims]
// trusts only ADDs in the node's PID namespace.
func TestHazard59InterfaceShowsNoAddress(t *testing.T) {
	if !onNode(t) {
		return
	}
	networks := []string{"podnet", "storage"}
	s, err := New(Options{Nested: true, Networks: networks})
	if err != nil {
		t.Fatal(err)
	}
	check := func(reason string, want []string, note string) {
		t.Helper()
		a, err := s.Pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		adds, seen := parts(t, a)
		if !seen.SeesAddresses || !slices.Equal(seen.Networks, want) || !strings.Contains(seen.Note, note) || note == "" && seen.Note != "" {
			t.Errorf("speaks of %v, note %q: %s", seen.Networks, seen.Note, reason)
		}
		if adds.Networks != nil {
			t.Errorf("the part with the ADDs speaks of %v, want none", adds.Networks)
		}
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}
	if err := errors.Join(netlink.LinkAdd(pair), setUp("veth0"), setUp("veth1")); err != nil {
		t.Fatal(err)
	}
	check("no container, and an interface of the node's own", networks, "")
	pod, _ := startPod(t, "10.0.0.9")
	inPodNetNS(t, pod, func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "docker0"}}
		return errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge))
	})
	check("an interface of a kind that no plugin makes for a container", networks, "")
	inPodNetNS(t, pod, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "net1"})
	})
	check("both are down, as after an ADD that was killed", networks, "")
	inPodNetNS(t, pod, func() error { return errors.Join(setUp("eth0"), setUp("net1")) })
	addAddress(t, pod, "eth0", "10.0.0.2/24")
	check("one of two has no address", nil, `interface "net1" in network namespace`)
	_, ended := startADD(t, "ADD", "c1", fmt.Sprintf("/proc/%d/ns/net", pod))
	check("an ADD in flight sets it up, and names the container", networks, "")
	ended()
	check("the ADD has ended", nil, `interface "net1"`)
	_, ended = start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "CNI_COMMAND=ADD", "CNI_CONTAINERID=tenant", fmt.Sprintf("CNI_NETNS=/proc/%d/ns/net", pod))
	check("a tenant claims to set up another pod's namespace", nil, `interface "net1"`)
	ended()
	addAddress(t, pod, "net1", "fe80::1/64")
	check("a link-local address is not a container's address", nil, `interface "net1"`)
	named := s
	s = nested(t)
	check("no network in the options", nil, "")
	s = named
	addAddress(t, pod, "net1", "10.0.1.2/24")
	check("both have an address", networks, "")
}
