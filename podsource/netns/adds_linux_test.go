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

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// startADD starts a process that runs a CNI command.
func startADD(t testing.TB, command, containerID, netNS string) (pid int, stop func()) {
	t.Helper()
	return start(t, nil, "CNI_COMMAND="+command, "CNI_CONTAINERID="+containerID, "CNI_NETNS="+netNS, "CNI_IFNAME=eth0")
}

// addsInFlight returns the container IDs of the ADDs that a source sees.
func addsInFlight(t testing.TB, ctx context.Context, s *Source) (ids []string) {
	t.Helper()
	if got := s.Rank(); got != podsource.RankADDs {
		t.Errorf("the rank is %d: other sources are asked before ADDs", got)
	}
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

// Which containers an environment names. Of other variables none is copied. A long one may be of an ADD.
func TestEnvironments(t *testing.T) {
	for _, row := range []struct {
		reason, text string
		want         []string
	}{
		{"an ADD", "CNI_COMMAND=ADD\x00CNI_CONTAINERID=a\x00", []string{"a"}},
		{"first and last of many", "CNI_CONTAINERID=a\x00CNI_CONTAINERID=b\x00CNI_COMMAND=ADD\x00CNI_CONTAINERID=d\x00", []string{"a", "d"}},
		{"another command", "CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00", nil},
		{"one that begins like it", "CNI_COMMAND=ADDED\x00CNI_CONTAINERID=a\x00", nil},
		{"one of two commands", "CNI_COMMAND=DEL\x00CNI_COMMAND=ADD\x00CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00", []string{"a"}},
		{"a variable that ends like it", "XCNI_COMMAND=ADD\x00CNI_CONTAINERID=a\x00", nil},
		{"a value that looks like it", "OTHER=CNI_COMMAND=ADD\x00CNI_CONTAINERID=a\x00", nil},
		{"no ID", "CNI_COMMAND=ADD\x00", nil},
		{"IDs that CNI does not allow, and gc would refuse", "CNI_COMMAND=ADD\x00CNI_CONTAINERID=a/b\x00CNI_CONTAINERID=\x00", nil},
		{"... beside one that it allows", "CNI_COMMAND=ADD\x00CNI_CONTAINERID=-x\x00CNI_CONTAINERID=c\x00", []string{"c"}},
		{"... that no runtime uses, as it is too long", "CNI_COMMAND=ADD\x00CNI_CONTAINERID=" + strings.Repeat("x", maxEntry), nil},
		{"... of other characters", "CNI_COMMAND=ADD\x00CNI_CONTAINERID=a:b\x00CNI_CONTAINERID=\u00e4\x00", nil},
	} {
		s := scanOf(t, procOf(t, map[string]string{"environ": row.text}))
		s.readEnvironment("7", s.opts.Proc+"/7")
		var got []string
		for _, a := range s.adds {
			got = append(got, a.containerIDs...)
		}
		if !slices.Equal(got, row.want) || s.err != nil {
			t.Errorf("%s: got %q, want %q, error %v", row.reason, got, row.want, s.err)
		}
	}
	many := []byte(strings.Repeat("OTHER=a value that is not short enough for the stack\x00", 100))
	if n := testing.AllocsPerRun(10, func() { parseADD(many, "7", 5) }); n > 10 {
		t.Errorf("%v variables of 100 were copied", n)
	}
	for pidNS, want := range map[uint64]int{5: 1, 6: 0} { // in the node's PID namespace, and in a tenant's
		s := scanOf(t, procOf(t, map[string]string{"environ": strings.Repeat("x", maxEnvironment), "ns/pid": "link:pid:[5]"}))
		s.pidNS = pidNS
		if s.readEnvironment("7", s.opts.Proc+"/7"); len(s.late) != want || s.err != nil {
			t.Errorf("the node's PID namespace is %d: got %v, want %d, error %v", pidNS, s.late, want, s.err)
		}
	}
}

// Between two plugins of a chain an ADD has no process, and at times it has two. Processes are
// read twice, also if the first scan found nothing new.
//
// Guard: [Source.scan] reads all processes [minScans] times, and environments first.
func TestHazard72BetweenTwoPlugins(t *testing.T) {
	if !onNode(t) {
		return
	}
	var stop func()
	for _, row := range []struct {
		reason string
		change func()
	}{
		{"the next plugin started after processes were listed", func() { _, stop = startADD(t, "ADD", "ee3b0f0c", "/run/netns/cni-1") }},
		{"its process was read only after namespaces, when it had ended", func() { stop() }},
		{"two plugins of a chain run", func() {
			startADD(t, "ADD", "ee3b0f0c", "/run/netns/cni-1")
			startADD(t, "ADD", "ee3b0f0c", "/run/netns/cni-1")
		}},
	} {
		s, change := nested(t), sync.OnceFunc(row.change)
		s.setns = func(fd, kind int) error { // of the first namespace, which is the node's own
			change()
			return unix.Setns(fd, kind)
		}
		if got := addsInFlight(t, t.Context(), s); !slices.Equal(got, []string{"ee3b0f0c"}) {
			t.Errorf("%s: got %q", row.reason, got)
		}
	}
}

// A process with the variables of an ADD that can't be a plugin claims nothing.
//
// Guard: [scan.noteClaims] leaves out processes that have run for longer than
// [Options.LongestADD], and those that are in the claimed namespace
// ([scan.inClaimedNetNS]).
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
		{"a daemon that inherited them, and has run for longer than any ADD", func() { startADD(t, "ADD", "daemon", "/run/netns/cni-1") }, time.Nanosecond, nil},
		{"the same, before it has run for that long", func() {}, time.Minute, []string{"daemon"}},
		{"a tenant in the claimed namespace, by its mount", func() {
			pid, _ := start(t, container, "CNI_COMMAND=ADD", "CNI_CONTAINERID=tenant", "CNI_NETNS=/var/run/netns/tenant")
			bindNamespace(t, pid, "/run/netns/tenant")
		}, 0, []string{"daemon"}},
		{"... by its process", func() {
			pod, _ := startPod(t)
			enter(t, pod, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "CNI_COMMAND=ADD", "CNI_CONTAINERID=tenant", fmt.Sprintf("CNI_NETNS=/proc/%d/ns/net", pod))
		}, 0, []string{"daemon"}},
		{"a tenant that claims another path than that of its namespace", func() {
			start(t, container, "CNI_COMMAND=ADD", "CNI_CONTAINERID=unclear", "CNI_NETNS=/run/netns/unclear")
		}, 0, []string{"daemon", "unclear"}},
		{"a plugin that has entered the namespace", func() {
			pod, _ := startPod(t)
			bindNamespace(t, pod, "/run/netns/inside")
			enter(t, pod, nil, "CNI_COMMAND=ADD", "CNI_CONTAINERID=inside", "CNI_NETNS=/run/netns/inside")
		}, 0, []string{"daemon", "inside", "unclear"}},
	} {
		row.start()
		s, err := New(Options{Nested: true, LongestADD: row.limit})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(row.want, addsInFlight(t, t.Context(), s)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
	for _, opts := range []Options{{LongestADD: -1}, {Patience: -1}} {
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), "negative") {
			t.Errorf("%+v: got %v", opts, err)
		}
	}
}

// bindNamespace mounts a process's network namespace.
func bindNamespace(t testing.TB, pid int, path string) {
	t.Helper()
	source := fmt.Sprintf("/proc/%d/ns/net", pid)
	if err := errors.Join(os.WriteFile(path, nil, 0o444), unix.Mount(source, path, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
}

// enter starts a process in the network namespace of another process. stop ends it.
func enter(t testing.TB, target int, attr *syscall.SysProcAttr, env ...string) (pid int, stop func()) {
	t.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", target))
	if err != nil {
		t.Fatal(err)
	}
	err = onThreadOf(func() error { return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET) }, func() error {
		pid, stop = start(t, attr, env...)
		return nil
	})
	if err := errors.Join(err, ns.Close()); err != nil {
		t.Fatal(err)
	}
	return pid, stop
}

// Another process of a mount namespace sees a mount that its first process, in a chroot, does
// not see. In a chroot on a non-recursive bind mount of the root, the root has the same file
// system and inode.
//
// Guard: [scan.readMounts] reads the mounts of each [processRoot], not of each mount
// namespace, and compares the mount IDs of roots, too.
func TestHazard60FirstProcessIsChrooted(t *testing.T) {
	if !onNode(t) {
		return
	}
	for _, row := range []struct{ reason, source, target string }{
		{"another root", "/proc", "/run/other/proc"},
		{"a root of the same inode", "/", "/run/empty"},
	} {
		if err := errors.Join(os.MkdirAll(row.target, 0o755), unix.Mount(row.source, row.target, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		// They have a mount namespace of their own, so that no other process sees the mount.
		root := strings.TrimSuffix(row.target, "/proc")
		_, stop := startAs(t, mounter, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}, "NETNS_TEST_ROOT="+root)
		sees(t, row.reason, "10.0.0.7")
		stop()
		sees(t, row.reason+": both have ended")
	}
}

// A tenant's command name or mount point can't forge or flood the report (hazards 78
// and 79).
//
// Guard: [printable] cuts and quotes names.
func TestHazard78NamesInReports(t *testing.T) {
	if !onNode(t) {
		return
	}
	const name = "x)\nof 1 (init"
	if err := os.Symlink("/bin/sleep", "/run/"+name); err != nil {
		t.Fatal(err)
	}
	pid, err := syscall.ForkExec("/run/"+name, []string{"sleep", "60"}, &syscall.ProcAttr{
		Env: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=ee3b0f0c"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	point := "/run/netns/x, of process 1\n" + strings.Repeat("y", 200)
	mountNamespace(t, point, "10.0.0.2")
	all, err := nested(t).Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	adds, addresses := parts(t, all)
	if len(adds.Pods) != 1 || len(addresses.Pods) != 1 {
		t.Fatalf("got %+v", all)
	}
	if got, want := adds.Pods[0].Origin, fmt.Sprintf(`CNI ADD by process %d ("x)\nof 1 (init")`, pid); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	_, got, _ := strings.Cut(addresses.Pods[0].Origin, ", ")
	if want := `mounted at "/run/netns/x, of process 1\n` + strings.Repeat("y", 128-27) + `", without a process`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPrintable(t *testing.T) {
	for _, row := range []struct{ reason, text, want string }{
		{"nothing", "", `""`},
		{"all that is not plain", "a\x1b[2J\n\"b)\u202e\xff", `"a\x1b[2J\n\"b)\u202e\xff"`},
		{"cut", strings.Repeat("a", 127) + "ää", `"` + strings.Repeat("a", 127) + `\u00e4"`},
	} {
		if got := printable(row.text); got != row.want {
			t.Errorf("got %s, want %s: %s", got, row.want, row.reason)
		}
	}
}
