// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(root) }()
	if ns, err := openMount(root, namespaceMount{stat.Ino, path}); !errors.Is(err, errHidden) {
		t.Errorf("got %d, %v, want %v", ns, err, errHidden)
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

// The answer is complete if the last reading of all processes is, whatever those before it
// missed. The limit of the text of the mounts is for one reading: if all counted together, a
// node could lose its declaration for ever, and so the end of its leaks.
func TestSeenInTheEnd(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	sc := nested(t).newScan(t.Context())
	sc.maxUnchanged = 0 // each reading reads all mounts
	if err := sc.watch(t.Context(), sc.readNode); err != nil {
		t.Fatal(err)
	}
	text := sc.mountText
	sc.truncated, sc.unreadable[1] = true, podsource.Pod{}
	if _, missing := sc.all(); missing == "" {
		t.Error("something could not be read, and the answer is complete")
	}
	for _, row := range []struct {
		limit     int
		truncated bool
	}{{text - 1, true}, {text * 3 / 2, false}, {text, false}} {
		sc.maxMountText = row.limit
		if err := sc.processes(); err != nil || sc.truncated != row.truncated {
			t.Errorf("mounts of %d bytes, with a limit of %d: %v, truncated: %t", sc.mountText, row.limit, err, sc.truncated)
		}
	}
	if pods, missing := sc.all(); missing != "" || len(pods) != 1 {
		t.Errorf("got %v, %q", pods, missing)
	}
}

// The addresses of one namespace change all the time.
func TestNamespaceChangesAllTheTime(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	pid, _ := startPod(t, "10.0.0.3")
	changing, err := netNSOf(fmt.Sprintf("/proc/%d", pid))
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
		s.before = s.addressed
	}
	s.withProcess[7] = true
	note(7, "10.0.0.2", nil)
	const first, of8 = "[10.0.0.2] network namespace 7, mounted at /run/netns/a", " network namespace 8, mounted at /run/netns/a, without a process"
	check("all is found", "", first)
	note(8, "10.0.0.3", podsource.ErrIncomplete)
	s.note(8, "mounted at /run/netns/b", nil, unix.EACCES)
	s.note(9, "mounted at /run/netns/c", nil, unix.EACCES)
	check("one changes, and one can't be opened", "2 network namespaces could not be read, among them network namespace 8, mounted at /run/netns/a", first, "[10.0.0.3]"+of8)
	note(8, "10.0.0.4", nil)
	s.note(9, "mounted at /run/netns/c", nil, nil)
	check("they are found in the end", "", first, "[10.0.0.4]"+of8)
	s.truncated = true
	check("some mounts are not read", "some process has more mounts than are read", first, "[10.0.0.4]"+of8)
	s.before = 0
	check("the last reading found some", "new network namespaces appear faster than they are read", first, "[10.0.0.4]"+of8)
	s.pid = "4711"
	s.tooLate("/proc/4711/environ hangs")
	check("a process that can't be read may be in any of them", "process 4711 can't be read in time: /proc/4711/environ hangs", first, "[10.0.0.4] network namespace 8, mounted at /run/netns/a")
}

// A message is what a netlink dump contains.
func message(kind uint16, flags uint16, data []byte) []byte {
	header := make([]byte, unix.SizeofNlMsghdr)
	binary.NativeEndian.PutUint32(header, uint32(len(header)+len(data)))
	binary.NativeEndian.PutUint16(header[4:], kind)
	binary.NativeEndian.PutUint16(header[6:], flags)
	return append(header, data...)
}

// address is a message with an address, at the interface 3.
func address(scope byte, attributes ...any) []byte {
	data := []byte{unix.AF_INET, 32, 0, scope, 0, 0, 0, 0}
	binary.NativeEndian.PutUint32(data[4:], 3)
	for i := 0; i < len(attributes); i += 2 {
		ip := attributes[i+1].([]byte)
		data = binary.NativeEndian.AppendUint16(data, uint16(4+len(ip)))
		data = binary.NativeEndian.AppendUint16(data, uint16(attributes[i].(int)))
		data = append(data, ip...)
		data = append(data, make([]byte, (4-len(ip)%4)%4)...)
	}
	return message(unix.RTM_NEWADDR, 0, data)
}

// All addresses count except local ones. One that is invalid, and an error at the end of a
// list, is an error.
func TestAddressesOf(t *testing.T) {
	ip := func(text string) []byte { return netip.MustParseAddr(text).AsSlice() }
	done := func(code int32) []byte {
		return message(unix.NLMSG_DONE, 0, binary.NativeEndian.AppendUint32(nil, uint32(code)))
	}
	interrupted := message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, make([]byte, 4))
	first := address(0, unix.IFA_LOCAL, ip("10.0.0.3"))
	for _, row := range []struct {
		reason string
		lists  [][]byte // of each try; the last one repeats
		want   string
		err    error
		tries  int
	}{
		{"several, one of them twice", [][]byte{slices.Concat(first, address(0, unix.IFA_ADDRESS, ip("10.0.0.2")), first, done(0))}, "[10.0.0.2 10.0.0.3]", nil, 1},
		{"with a peer", [][]byte{slices.Concat(address(0, unix.IFA_ADDRESS, ip("10.0.0.9"), unix.IFA_LOCAL, ip("10.0.0.3")), done(0))}, "[10.0.0.3]", nil, 1},
		{"loopback and link-local", [][]byte{slices.Concat(address(unix.RT_SCOPE_HOST, unix.IFA_LOCAL, ip("127.0.0.1")), address(unix.RT_SCOPE_LINK, unix.IFA_ADDRESS, ip("fe80::1")), done(0))}, "[]", nil, 1},
		{"link scope, and not link-local", [][]byte{slices.Concat(address(unix.RT_SCOPE_LINK, unix.IFA_LOCAL, ip("10.0.0.3")), done(0))}, "[10.0.0.3]", nil, 1},
		{"link-local, and global scope", [][]byte{slices.Concat(address(0, unix.IFA_LOCAL, ip("169.254.0.2")), done(0))}, "[169.254.0.2]", nil, 1},
		{"one lacks its address", [][]byte{slices.Concat(first, address(0), done(0))}, "[]", errAny, 1},
		{"one is invalid", [][]byte{slices.Concat(first, address(0, unix.IFA_LOCAL, []byte{1, 2, 3}), done(0))}, "[]", errAny, 1},
		{"they changed once", [][]byte{slices.Concat(first, interrupted), slices.Concat(first, address(0, unix.IFA_LOCAL, ip("10.0.0.4")), done(0))}, "[10.0.0.3 10.0.0.4]", nil, 2},
		{"they change all the time", [][]byte{slices.Concat(first, interrupted)}, "[10.0.0.3]", podsource.ErrIncomplete, 5},
		{"the kernel ends the list with an error", [][]byte{slices.Concat(first, done(-int32(unix.ENOBUFS)))}, "[10.0.0.3]", unix.ENOBUFS, 1},
		{"garbage", [][]byte{first[:20]}, "[]", errAny, 1},
	} {
		tries := 0
		messages, err := dump(func() ([]byte, error) {
			tries++
			return row.lists[min(tries, len(row.lists))-1], nil
		})
		ips, addressed, addressErr := addressesOf(messages)
		if err = errors.Join(err, addressErr); (err == nil) != (row.err == nil) || row.err != errAny && !errors.Is(err, row.err) {
			t.Errorf("%s: got error %v, want %v", row.reason, err, row.err)
		}
		if got := fmt.Sprint(ips); got != row.want || tries != row.tries || addressed[3] != (len(ips) > 0) {
			t.Errorf("%s: got %s after %d tries, interfaces %v, want %s after %d", row.reason, got, tries, addressed, row.want, row.tries)
		}
	}
	if _, err := dump(func() ([]byte, error) { return nil, unix.ENOBUFS }); !errors.Is(err, unix.ENOBUFS) {
		t.Errorf("got %v", err)
	}
}

var errAny = errors.New("any")

// Which interfaces may use an address that is not seen.
func TestUnaddressedOf(t *testing.T) {
	link := func(kind string, flags uint32) []byte {
		data := make([]byte, unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint32(data[4:], 3)
		binary.NativeEndian.PutUint32(data[8:], flags)
		put := func(data []byte, attribute int, value []byte) []byte {
			data = binary.NativeEndian.AppendUint16(data, uint16(4+len(value)))
			data = binary.NativeEndian.AppendUint16(data, uint16(attribute))
			return append(append(data, value...), make([]byte, (4-len(value)%4)%4)...)
		}
		return message(unix.RTM_NEWLINK, 0, put(put(data, unix.IFLA_IFNAME, []byte("eth0\x00")), unix.IFLA_LINKINFO, put(nil, unix.IFLA_INFO_KIND, []byte(kind+"\x00"))))
	}
	const up, none, found = unix.IFF_UP, "", "no address at interface eth0"
	for _, row := range []struct {
		reason    string
		data      []byte
		addressed bool
		want      string
	}{
		{"ptp and bridge", link("veth", up), false, found},
		{"macvlan", link("macvlan", up), false, found},
		{"ipvlan", link("ipvlan", up), false, found},
		{"vlan", link("vlan", up), false, found},
		{"another kind", link("bridge", up), false, none},
		{"down", link("veth", 0), false, none},
		{"with an address", link("veth", up), true, none},
		{"the second of two", slices.Concat(link("dummy", up), link("veth", up)), false, found},
	} {
		messages, err := syscall.ParseNetlinkMessage(row.data)
		if got := unaddressedOf(messages, map[uint32]bool{3: row.addressed}); err != nil || got != row.want {
			t.Errorf("%s: got %q, %v, want %q", row.reason, got, err, row.want)
		}
	}
}
