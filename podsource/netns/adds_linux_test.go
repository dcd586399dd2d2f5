// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// startADD starts a process that runs a CNI command.
func startADD(t testing.TB, command, containerID, netNS string) (pid int, stop func()) {
	t.Helper()
	return start(t, nil, "CNI_COMMAND="+command, "CNI_CONTAINERID="+containerID, "CNI_NETNS="+netNS, "CNI_IFNAME=eth0")
}

// underWay returns the container IDs of the ADDs that a source sees.
func underWay(t testing.TB, ctx context.Context, s *Source) (ids []string) {
	t.Helper()
	all, err := s.Pods(ctx)
	if err != nil {
		t.Fatal(err)
	}
	adds, _ := parts(t, all)
	for _, p := range adds.Pods {
		if len(p.ContainerIDs) != 1 || p.IPs != nil || p.Name != "" || !strings.HasPrefix(p.Origin, "CNI ADD by process ") {
			t.Errorf("got %+v, want a container ID and where it was seen", p)
		}
		ids = append(ids, p.ContainerIDs...)
	}
	return ids
}

func TestADDsUnderWay(t *testing.T) {
	if !onNode(t) {
		return
	}
	_, stop := startADD(t, "ADD", "ee3b0f0c", "/run/netns/cni-1")
	startADD(t, "ADD", "default-5c7b", "/run/netns/cni-2")
	startADD(t, "ADD", "default-5c7b", "/run/netns/cni-2") // the second plugin in a chain has begun, the first has not ended
	for _, command := range []string{"DEL", "CHECK", "ADDED", "", "add"} {
		startADD(t, command, "ended", "/run/netns/cni-3")
	}
	for _, id := range []string{"", "-x", "a b", "a/b", "a:b", "ä"} { // what no runtime sets can't make an answer that gc refuses
		startADD(t, "ADD", id, "/run/netns/cni-4")
	}
	start(t, nil, "XCNI_COMMAND=ADD", "CNI_CONTAINERID=other")
	twice, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "60"}, &syscall.ProcAttr{
		Env: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=first", "CNI_CONTAINERID=last", "CNI_NETNS=/run/netns/cni-5"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(twice, syscall.SIGKILL) }()
	start(t, nil, "OTHER=CNI_COMMAND=ADD", "CNI_CONTAINERID=other")
	if got, want := underWay(t, t.Context(), nested(t)), []string{"default-5c7b", "ee3b0f0c", "first", "last"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	stop()
	if got, want := underWay(t, t.Context(), nested(t)), []string{"default-5c7b", "first", "last"}; !slices.Equal(got, want) {
		t.Errorf("one has ended: got %q, want %q", got, want)
	}
}

// A reservation that is older than any minimum age, of an ADD that takes longer:
// its process claims it. No other source could know of it.
//
// Guard: [Source.Pods] has the container of each ADD under way, of whatever
// age.
func TestHazard65SlowADD(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": id("51039"), "10.0.0.3": id("1eaced"), "10.0.0.4": id("1157ed")})
	pid, stop := startADD(t, "ADD", id("51039"), "/run/netns/cni-1")
	both := podsource.Union(runtimeLists, nested(t))
	report := pass(t, store, both, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.3": gc.Released, "10.0.0.4": gc.InUse})
	if want := fmt.Sprintf("netns ADDs: CNI ADD by process %d (exe)", pid); report.Reservations[0].Pod.From != want {
		t.Errorf("the report says %q, want %q", report.Reservations[0].Pod.From, want)
	}
	// Its address is configured, and it goes on: this is no conflict.
	startPod(t, "10.0.0.2")
	pass(t, store, both, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.4": gc.InUse})
	stop()
	pass(t, store, both, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "10.0.0.4": gc.InUse})
}

// between calls do once, when processes are listed for the first time already.
type between struct {
	context.Context
	once *sync.Once
	do   func()
}

func (b between) Err() error {
	b.once.Do(b.do)
	return b.Context.Err()
}

// Between two plugins of a chain an ADD runs in no process. The node is looked at
// twice, also where the first look found nothing new.
//
// Guard: [Source.scan] looks at processes [minScans] times.
func TestHazard72BetweenTwoPlugins(t *testing.T) {
	if !onNode(t) {
		return
	}
	ctx := between{t.Context(), new(sync.Once), func() { startADD(t, "ADD", "ee3b0f0c", "/run/netns/cni-1") }}
	sc, err := nested(t).scan(ctx) // Pods gives it a context with a time limit
	if err != nil {
		t.Fatal(err)
	}
	if len(sc.adds) == 0 || sc.adds[0].containerID != "ee3b0f0c" {
		t.Errorf("the next plugin came when processes had been listed: got %+v", sc.adds)
	}
	var stop func()
	startPod(t, "10.0.0.2")
	s := nested(t)
	_, stop = startADD(t, "ADD", "5c7b9a1e", "/run/netns/cni-1")
	s.setns = func(fd, kind int) error {
		stop()
		return unix.Setns(fd, kind)
	}
	if got := underWay(t, t.Context(), s); !slices.Contains(got, "5c7b9a1e") {
		t.Logf("it ended before its process was looked at: got %q", got)
	}
}

// What bears the variables of an ADD and can't be one claims nothing.
//
// Guard: [scan.claims] leaves out who runs for longer than [Options.LongestADD],
// and [scan.atHome] who is in the namespace itself.
func TestHazard78EnvironmentOfOthers(t *testing.T) {
	if !onNode(t) {
		return
	}
	container := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID}
	for _, row := range []struct {
		reason string
		start  func()
		limit  time.Duration
		want   []string
	}{
		{"a daemon that inherited them, and runs for longer than any ADD", func() { startADD(t, "ADD", "daemon", "/run/netns/cni-1") }, time.Nanosecond, nil},
		{"the same, as long as it could be one", func() {}, time.Minute, []string{"daemon"}},
		{"a tenant in the very namespace, by its mount", func() {
			pid, _ := start(t, container, "CNI_COMMAND=ADD", "CNI_CONTAINERID=tenant", "CNI_NETNS=/var/run/netns/tenant")
			bindNamespace(t, pid, "/run/netns/tenant")
		}, 0, []string{"daemon"}},
		{"... by its process", func() {
			home, _ := startPod(t)
			enter(t, home, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "CNI_COMMAND=ADD", "CNI_CONTAINERID=tenant", fmt.Sprintf("CNI_NETNS=/proc/%d/ns/net", home))
		}, 0, []string{"daemon"}},
		{"... by itself", func() {
			start(t, container, "CNI_COMMAND=ADD", "CNI_CONTAINERID=tenant", "CNI_NETNS=/proc/self/ns/net")
		}, 0, []string{"daemon"}},
		{"a plugin in the node's namespace, which is not the one that it sets up", func() {
			home, _ := startPod(t)
			bindNamespace(t, home, "/run/netns/plugin")
			startADD(t, "ADD", "plugin", "/run/netns/plugin")
		}, 0, []string{"daemon", "plugin"}},
		{"a tenant in a namespace of another name", func() {
			start(t, container, "CNI_COMMAND=ADD", "CNI_CONTAINERID=unclear", "CNI_NETNS=/run/netns/unclear")
		}, 0, []string{"daemon", "plugin", "unclear"}},
		{"a plugin that has gone into the namespace", func() {
			home, _ := startPod(t)
			bindNamespace(t, home, "/run/netns/inside")
			enter(t, home, nil, "CNI_COMMAND=ADD", "CNI_CONTAINERID=inside", "CNI_NETNS=/run/netns/inside")
		}, 0, []string{"daemon", "inside", "plugin", "unclear"}},
	} {
		row.start()
		s, err := New(Options{Nested: true, LongestADD: row.limit})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(row.want, underWay(t, t.Context(), s)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
	for _, opts := range []Options{{LongestADD: -1}, {Timeout: -1}} {
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), "negative") {
			t.Errorf("%+v: got %v", opts, err)
		}
	}
}

// Which containers an environment names.
func TestAddIn(t *testing.T) {
	for _, row := range []struct {
		reason, text string
		want         []string
	}{
		{"an ADD", "CNI_COMMAND=ADD\x00CNI_CONTAINERID=a", []string{"a"}},
		{"the first and the last of many", "CNI_CONTAINERID=a\x00CNI_CONTAINERID=b\x00CNI_CONTAINERID=c\x00CNI_COMMAND=ADD\x00CNI_CONTAINERID=d\x00", []string{"a", "d"}},
		{"another command", "CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00", nil},
		{"one of two commands", "CNI_COMMAND=ADD\x00CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00", []string{"a"}},
		{"an ID that CNI does not allow", "CNI_COMMAND=ADD\x00CNI_CONTAINERID=a/b\x00CNI_CONTAINERID=c\x00", []string{"c"}},
		{"none", "CNI_COMMAND=ADD\x00", nil},
	} {
		if _, got := addIn([]byte(row.text)); !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, want %q", row.reason, got, row.want)
		}
	}
}

// bindNamespace mounts a process's network namespace.
func bindNamespace(t testing.TB, pid int, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/net", pid), path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
}

// enter starts a process in the network namespace of another one.
func enter(t testing.TB, home int, attr *syscall.SysProcAttr, env ...string) {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", home), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := withNetNS(fd, unix.Setns, func() error {
		start(t, attr, env...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A process in a chroot sees none of the mounts, and the next one of its mount
// namespace sees them.
//
// Guard: [scan.mounted] reads the mounts of each [view], which is a mount
// namespace and a root.
func TestHazard60FirstProcessIsChrooted(t *testing.T) {
	if !onNode(t) {
		return
	}
	if err := os.MkdirAll("/run/empty/proc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc", "/run/empty/proc", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	startMounter(t)
	sees(t, "mounted where the first process of the mount namespace does not see it", "10.0.0.7")
}

// A process in a chroot on a plain bind of the root has a root of the same file
// system and inode, and sees no mounts below it.
//
// Guard: [scan.mounted] tells roots apart by where they are mounted, too.
func TestHazard60TwoRootsOfOneInode(t *testing.T) {
	if !onNode(t) {
		return
	}
	if err := os.MkdirAll("/run/empty", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/", "/run/empty", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	startMounter(t)
	sees(t, "mounted where the first process does not see it", "10.0.0.7")
}

// What a process shows as its environment may be any memory, of any size.
func TestReadIsBounded(t *testing.T) {
	file := t.TempDir() + "/environ"
	if err := os.WriteFile(file, make([]byte, 3*maxProcfs), 0o600); err != nil {
		t.Fatal(err)
	}
	var s scan
	if text, err := s.read(file); !errors.Is(err, errTooLong) || len(s.buf) > 3*maxProcfs {
		t.Errorf("got %d bytes into %d, %v", len(text), len(s.buf), err)
	}
}

// Mount points may hold any white space: the kernel escapes but four of them.
func TestMountPointsWithWhiteSpace(t *testing.T) {
	if !onNode(t) {
		return
	}
	var want []string
	for i, name := range []string{"cni\r1", "cni\u00a02", "cni\v3", "cni\f4"} {
		want = append(want, fmt.Sprintf("10.0.0.%d", i+1))
		mountNamespace(t, "/run/netns/"+name, want[i])
	}
	sees(t, "each is found", want...)
}

// Namespaces without an address come and go as sandboxes of builds do.
func TestEmptyNamespacesComeAllTheTime(t *testing.T) {
	if !onNode(t) {
		return
	}
	startPod(t, "10.0.0.2")
	s := nested(t)
	s.setns = func(fd, kind int) error {
		startPod(t)
		return unix.Setns(fd, kind)
	}
	got, err := s.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, addresses := parts(t, got); !addresses.SeesAddresses {
		t.Error("all addresses were seen, and the answer does not say so")
	}
}

// startMounter starts a process that is in a chroot on /run/empty, and another one
// of the same mount namespace that sees a network namespace mounted.
func startMounter(t *testing.T) {
	t.Helper()
	// Both have mounts of their own, so that no other process shows them.
	first := again(t, mounter)
	first.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = first.Wait()
	})
	buf := make([]byte, 64)
	if n, err := out.Read(buf); err != nil || string(buf[:n]) != "ready\n" {
		t.Fatalf("got %q, %v", buf[:n], err)
	}
}
