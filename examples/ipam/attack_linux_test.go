// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// attempt is an ADD in the test's process, after its first try has failed.
func (n *testNode) attempt(ctx context.Context) *attempt {
	n.t.Helper()
	conf, err := parseConfig([]byte(n.config()))
	if err != nil {
		n.t.Fatal(err)
	}
	a := &attempt{ctx: ctx, stdin: []byte(n.config())}
	if a.node, err = newNode(conf); err != nil {
		n.t.Fatal(err)
	}
	return a
}

// A container whose namespace shows no address keeps its reservation when its runtime asks for an
// address again, unless its record says that it ended.
func TestKeepsItsOwnWithoutAddress(t *testing.T) {
	for _, row := range []struct {
		reason string
		setUp  func(*testNode) call // container lives, and has the address 0
		heals  bool
	}{
		{"the wrong cache, and another namespace", func(n *testNode) call {
			n.Make("again")
			n.gc = fmt.Sprintf(`{"nested":true,"cacheDirs":[%q]}`, n.dir)
			return call{env: []string{"CNI_NETNS=/run/netns/again"}}
		}, false},
		{"the cache was wiped, and has newer records", func(n *testNode) call {
			n.Make("again")
			n.mustRemove(n.recordFile(container))
			cnitest.DateBack(n.t, n.file(address(0)), old)
			n.reserve(address(1), "other", time.Minute)
			n.record("other", "/run/netns/other", time.Minute)
			return call{env: []string{"CNI_NETNS=/run/netns/again"}}
		}, false},
		{"its record has the namespace of this ADD, which it was attached to", func(*testNode) call {
			return call{}
		}, false},
		{"the same, and its reservation is that of another interface, as host-local wrote it before 0.8.0", func(n *testNode) call {
			n.write(n.file(address(0)), container, 0)
			return call{}
		}, false},
		{"the same, by a link to the namespace of a process", func(n *testNode) call {
			link := filepath.Join(n.dir, "netns")
			if err := os.Symlink(n.processNetNS(), link); err != nil {
				n.t.Fatal(err)
			}
			n.record(container, link, 0)
			return call{env: []string{"CNI_NETNS=" + link}}
		}, false},
		{"the same, and its record is from the future", func(n *testNode) call {
			cnitest.DateBack(n.t, n.recordFile(container), -old)
			return call{}
		}, false},
		{"the same, but its namespace would show its address", func(n *testNode) call {
			cnitest.DateBack(n.t, n.recordFile(container), -old)
			n.plugin = "bridge"
			return call{}
		}, true},
		{"its record is older than the namespace of this ADD", func(n *testNode) call {
			cnitest.DateBack(n.t, n.recordFile(container), old)
			return call{}
		}, true},
		{"its record is older than the process that this ADD is for, as with nerdctl after a reboot", func(n *testNode) call {
			netNS := n.processNetNS()
			n.record(container, netNS, sinceBoot()+old)
			return call{env: []string{"CNI_NETNS=" + netNS}}
		}, true},
		{"its record has the namespace of the process that this ADD is for", func(n *testNode) call {
			netNS := n.processNetNS()
			n.record(container, netNS, 0)
			return call{env: []string{"CNI_NETNS=" + netNS}}
		}, false},
		{"its record has a namespace that no longer exists", func(n *testNode) call {
			n.Make("again")
			n.Remove(container)
			return call{env: []string{"CNI_NETNS=/run/netns/again"}}
		}, true},
		{"its ADD did not end, and others are recorded since", func(n *testNode) call {
			n.mustRemove(n.recordFile(container))
			n.reserve(address(1), "other", time.Hour)
			n.record("other", "/run/netns/other", time.Hour)
			return call{}
		}, true},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newTestNode(t)
			n.reserve(address(0), container, 0)
			n.Make(container)
			n.record(container, "/run/netns/"+container, 0)
			n.plugin = "vfio"
			c := row.setUp(n)
			before, err := os.Stat(n.file(address(0)))
			if err != nil {
				t.Fatal(err)
			}
			c.command, c.id = "ADD", container
			got := n.call(c)
			if healed := got.code == 0; healed != row.heals || !healed && !strings.Contains(errorMessage([]byte(got.out)), twice) {
				t.Errorf("code %d: %s", got.code, got.out)
			}
			after, err := os.Stat(n.file(address(0)))
			if kept := err == nil && os.SameFile(before, after) && after.ModTime().Equal(before.ModTime()); kept == row.heals {
				t.Errorf("its reservation is kept: %t", kept)
			}
		})
	}
}

// processNetNS starts a process in a network namespace of its own, and returns its path.
func (n *testNode) processNetNS() string {
	n.t.Helper()
	process := exec.Command("/bin/cat")
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	n.start(process)
	return fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid)
}

// Between two plugins of a chain no process serves the container, and before the chain's end no
// record names it. If the namespace may hide the address, such a gap is not the container's end
// (hazard 72).
func TestHazard72KeepsItsOwnBetweenPlugins(t *testing.T) {
	n := newTestNode(t)
	n.plugin = "vfio"
	n.reserve(address(0), container, 0)
	n.reserve(address(1), "other", old)
	n.record("other", "/run/netns/other", old)
	t.Setenv("CNI_CONTAINERID", container)
	t.Setenv("CNI_IFNAME", "eth0")
	events, err := syscall.InotifyInit1(syscall.IN_NONBLOCK)
	if err == nil {
		_, err = syscall.InotifyAddWatch(events, n.cacheDir(), syscall.IN_OPEN)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(events)
	begun := false
	next := func() { // starts the next plugin once the cache was read
		if size, _ := syscall.Read(events, make([]byte, 4096)); size > 0 && !begun {
			begun = true
			n.process("CNI_COMMAND=ADD", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
		}
	}
	a := n.attempt(watchedContext{t.Context(), next})
	if again, err := a.releaseOwn(); again || err != nil || !strings.Contains(a.details(), "serves it") {
		t.Errorf("another try: %t, %v, %s", again, err, a.details())
	}
	if n.reserved()[address(0)] != container {
		t.Error("its address was released")
	}
}

// A process that serves the container may start after the first look at the processes.
func TestKeepsItsOwnBetweenTwoLooks(t *testing.T) {
	n := newTestNode(t)
	n.reserve(address(0), container, 0)
	n.record("other", "/run/netns/other", old)
	t.Setenv("CNI_CONTAINERID", container)
	t.Setenv("CNI_IFNAME", "eth0")
	a := n.attempt(t.Context())
	openings := n.stopOpenings(n.cacheDir())
	ended := make(chan error)
	go func() {
		again, err := a.releaseOwn()
		if again {
			err = errors.Join(err, errors.New("it asked for another try"))
		}
		_ = openings.Close() // if nothing was opened, the test still waits
		ended <- err
	}()
	var opening unix.FanotifyEventMetadata
	if err := binary.Read(openings, binary.NativeEndian, &opening); err != nil {
		t.Fatalf("waiting until the cache is opened: %v, %v", err, <-ended)
	}
	n.process("CNI_COMMAND=ADD", "CNI_CONTAINERID="+container, "CNI_IFNAME=eth0")
	if err := errors.Join(syscall.Close(int(opening.Fd)), openings.Close()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil || !strings.Contains(a.details(), "serves it") {
		t.Errorf("%v, %s", err, a.details())
	}
	if n.reserved()[address(0)] != container {
		t.Error("its address was released")
	}
}

// stopOpenings returns a fanotify group. Opening the directory waits until it is closed.
func (n *testNode) stopOpenings(dir string) *os.File {
	n.t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if err == nil {
		err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM|unix.FAN_ONDIR, unix.AT_FDCWD, dir)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "openings of "+dir)
}

// A watchedContext reports when a caller begins to wait for it.
type watchedContext struct {
	context.Context
	waits func()
}

func (c watchedContext) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

func (n *testNode) mustRemove(path string) {
	n.t.Helper()
	if err := os.Remove(path); err != nil {
		n.t.Fatal(err)
	}
}

// A pass for a requested address ends when that is judged. It does not answer an ADD that wants any
// address.
func TestPassForOneAnswersNobodyElse(t *testing.T) {
	n := newTestNode(t)
	held := n.mustAdd("live").String()
	cnitest.DateBack(n.t, n.file(held), old)
	for i := range addresses { // leaked a minute ago, with records that prove the cache
		if ip := address(i); ip != held {
			n.reserve(ip, fmt.Sprintf("gone%d", i), time.Minute)
			n.record(fmt.Sprintf("gone%d", i), fmt.Sprintf("/run/netns/gone%d", i), time.Minute)
		}
	}
	lock := n.lock()
	one, other := make(chan outcome), make(chan outcome)
	go func() { one <- n.call(call{command: "ADD", id: "a", args: "IgnoreUnknown=1;IP=" + held}) }()
	cnitest.Until(n.t, "the first plugin waits for the lock", func() bool { return awaited(t, lock) == 1 })
	go func() { other <- n.call(call{command: "ADD", id: "b"}) }()
	cnitest.Until(n.t, "the second plugin waits for the lock", func() bool { return awaited(t, lock) == 2 })
	lock.unlock()
	if got := <-one; got.code == 0 || !strings.Contains(got.out, "is in-use") {
		t.Errorf("the requested address: %s", got.out)
	}
	if got := <-other; got.code != 0 {
		t.Errorf("any address: %s", got.out)
	}
}

// Nor does it hide from such an ADD that another pass released something meanwhile.
func TestPassForOneHidesNoRelease(t *testing.T) {
	n := newTestNode(t)
	n.fill(0)
	lock := n.lock()
	one, other := make(chan outcome), make(chan outcome)
	go func() { one <- n.call(call{command: "ADD", id: "a", args: "IgnoreUnknown=1;IP=" + address(0)}) }()
	cnitest.Until(n.t, "the first plugin waits for the lock", func() bool { return awaited(t, lock) == 1 })
	go func() { other <- n.call(call{command: "ADD", id: "b"}) }()
	cnitest.Until(n.t, "the second plugin waits for the lock", func() bool { return awaited(t, lock) == 2 })
	n.mustRemove(n.file(address(7)))
	if err := lock.write(&note{BootID: lock.boot, Begin: sinceBoot(), End: sinceBoot(), Released: 1}); err != nil {
		t.Fatal(err)
	}
	lock.unlock()
	if got := <-one; got.code == 0 || !strings.Contains(got.out, "is young") {
		t.Errorf("the requested address: %s", got.out)
	}
	if got := <-other; got.code != 0 || n.reserved()[address(7)] != "b" {
		t.Errorf("any address: %s", got.out)
	}
}

// A pass that ended because its own ADD ran out of time answers no other ADD.
func TestTimeOfOneAnswersNobodyElse(t *testing.T) {
	n := newTestNode(t)
	n.fill(old)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := n.attempt(ctx)
	lock := n.lock()
	defer lock.unlock()
	if _, err := a.passNoted(lock, func(*finding) bool { return false }, true); !errors.Is(err, context.Canceled) {
		t.Fatalf("the test is of no use: %v", err)
	}
	if last := lock.read(); last.Begin != 0 || last.End != 0 {
		t.Errorf("ADDs that wait would take its answer: %+v", last)
	}
}

// A release in the first step of a pass justifies another try, even if the second step fails.
func TestSecondStepFails(t *testing.T) {
	n := newTestNode(t)
	n.fill(time.Minute)
	n.record("gone1", "/run/netns/gone1", time.Minute)
	n.reserve(address(0), "gone0", old)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := n.attempt(ctx)
	go func() { // the second step takes a second
		for cnitest.Exists(n.file(address(0))) {
			runtime.Gosched()
		}
		cancel()
	}()
	if again, err := a.passForAll(sinceBoot()); !again || err != nil {
		t.Errorf("another try: %t, %v", again, err)
	}
	if last := n.note(); last.Released != 1 {
		t.Errorf("%+v", last)
	}
}

// A container's earlier reservation that another process released meanwhile no longer stands in the
// way.
func TestReleasedByAnother(t *testing.T) {
	n := newTestNode(t)
	n.reserve(address(0), container, old)
	a := n.attempt(t.Context())
	list, err := hostlocal.New(n.dataDir()).List(t.Context())
	if err != nil || len(list.Reservations) != 1 {
		t.Fatal(list.Reservations, err)
	}
	n.mustRemove(n.file(address(0)))
	if released, away := a.release([]*hostlocal.Reservation{&list.Reservations[0]}, ""); released != 0 || away != 1 {
		t.Errorf("%d released, %d away", released, away)
	}
}

// An ADD recovers even if its stderr is a closed or full pipe.
func TestNobodyReadsStderr(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("full %t", full), func(t *testing.T) {
			n := newTestNode(t)
			n.fill(old)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if full {
				fill(t, w)
				defer r.Close()
			} else if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			cmd := n.command(call{command: "ADD", id: "a"})
			cmd.Stderr = w
			ended := make(chan error, 1)
			var out []byte
			go func() {
				var err error
				out, err = cmd.Output()
				ended <- err
			}()
			select {
			case err = <-ended:
			case <-time.After(time.Minute):
				_ = cmd.Process.Kill()
				t.Fatal("it did not end in a minute")
			}
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// A slow reader gets all lines.
func TestReadsStderrLate(t *testing.T) {
	n := newTestNode(t)
	n.fill(old)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	cmd := n.command(call{command: "ADD", id: "a"})
	cmd.Stderr = w
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	cnitest.Until(n.t, "it has its address", func() bool {
		count := 0
		for _, id := range n.reserved() {
			if id == "a" {
				count++
			}
		}
		return count == 1
	})
	said, err := io.ReadAll(r)
	if err := errors.Join(err, cmd.Wait(), r.Close()); err != nil {
		t.Error(err)
	}
	if lines := strings.Count(string(said), "\n"); lines != addresses+1 {
		t.Errorf("%d lines, want one for each address and one for the pass", lines)
	}
}

// fill writes to a pipe until it is full.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	conn, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Control(func(fd uintptr) {
		for err == nil {
			_, err = syscall.Write(int(fd), make([]byte, 4096))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The delegate is found in a relative CNI_PATH, and is the program that is executed.
func TestRelativePath(t *testing.T) {
	for _, path := range []string{".", ":/nowhere", "./", "../" + filepath.Base(bin)} {
		n := newTestNode(t)
		for _, command := range []string{"ADD", "DEL"} {
			c := call{command: command, id: "a", env: []string{"CNI_PATH=" + path}}
			cmd := n.command(c)
			cmd.Dir = bin
			if out, err := cmd.Output(); err != nil {
				t.Errorf("%q: %s: %v: %s", path, command, err, out)
			}
		}
	}
}

// A killed plugin takes its waiting delegate with it: a later reservation would be a leak that
// host-local alone does not make.
func TestKilledWithItsDelegate(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		n := newTestNode(t)
		n.reserve(address(0), "other", 0)
		held, err := os.OpenFile(filepath.Join(n.dataDir(), network, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		cmd := n.command(call{command: "ADD", id: "a"})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cnitest.Until(n.t, "the delegate waits for its lock", func() bool { return awaited(t, &stormLock{file: held}) == 1 })
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		cnitest.Until(n.t, "its delegate waits no more", func() bool { return awaited(t, &stormLock{file: held}) == 0 })
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
		if left := n.reserved(); len(left) != 1 {
			t.Errorf("%v: reserved: %v", signal, left)
		}
	}
}

// A cache directory on a file system that does not answer delays the ADD, which then ends as with
// host-local alone.
func TestHangingFileSystem(t *testing.T) {
	n := newTestNode(t)
	n.reserve(address(0), container, old)
	n.gc = fmt.Sprintf(`{"nested":true,"cacheDirs":[%q]}`, hanging(t))
	got := n.call(call{command: "ADD", id: container})
	if got.code == 0 || !strings.Contains(errorMessage([]byte(got.out)), twice) || !strings.Contains(got.out, "does a file system hang?") {
		t.Errorf("code %d: %s", got.code, got.out)
	}
}

// An ADD whose time ended during the delegate's last try says that, and names no file system.
func TestNoTimeLeft(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Hour))
	defer cancel()
	a := &attempt{ctx: ctx} // with a configuration that would be an error
	if again, err := a.treatInTime(exhausted, netip.Addr{}, 0); again || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%t, %v", again, err)
	}
}

// hanging mounts a FUSE file system whose server never answers.
func hanging(t *testing.T) string {
	t.Helper()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	if err := syscall.Mount("hanging", dir, "fuse", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), syscall.Unmount(dir, syscall.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Any data directory, network and ranges that host-local accepts recover, and live containers keep
// their addresses.
func TestOddConfigurations(t *testing.T) {
	const one, two = `[{"subnet":"10.9.0.0/29"}]`, `[{"subnet":"10.9.0.0/29"}],[{"subnet":"fd00::/125"}]`
	for _, row := range []struct {
		reason, network, dataDir, ranges, id string
		addresses                            int // per container
	}{
		{"a relative data directory", network, "networks", one, "a", 1},
		{"a relative data directory that is this one", network, ".", one, "a", 1},
		{"a link to the data directory", network, ".link", one, "a", 1},
		{"a data directory with more in its path than it takes", network, ".link/../networks//./", one, "a", 1},
		{"two families", network, "networks", two, "a", 2},
		{"IPv6", network, "networks", `[{"subnet":"fd00::/125"}]`, "a", 1},
		{"a range set of two parts", network, "networks", `[{"subnet":"10.9.0.0/30"},{"subnet":"10.9.7.0/30"}]`, "a", 1},
		{"a name with all that is allowed", "0.a_b-C..gc", "networks", one, "a", 1},
		{"a name that looks like an address", "10.9.0.2", "networks", one, "a", 1},
		{"a long name", strings.Repeat("n", 200), "networks", one, "a", 1},
		{"a container ID with all that is allowed", network, "networks", one, "0.a_b-C..gc", 1},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newTestNode(t)
			if err := errors.Join(os.Mkdir(n.dataDir(), 0o755), os.Symlink("networks", n.dir+"/.link")); err != nil {
				t.Fatal(err)
			}
			conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"bridge","ipam":{"type":"hostlocal-gc-ipam","dataDir":%q,"ranges":[%s],"gc":%s}}`,
				row.network, row.dataDir, row.ranges, n.gc)
			add := func(id, program string) outcome {
				return n.run(func() *exec.Cmd {
					cmd := n.command(call{command: "ADD", id: id, stdin: conf, program: program})
					cmd.Dir = n.dir
					return cmd
				})
			}
			n.Make("live")
			n.write(filepath.Join(n.cacheDir(), row.network+"-live-eth0"),
				fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"live","ifName":"eth0","networkName":%q,"netns":"/run/netns/live"}`, row.network), old)
			got := add("live", "")
			for i := 0; got.code == 0; i++ {
				got = add(sandbox(fmt.Sprint("gone", i)), filepath.Join(bin, "host-local"))
			}
			if !strings.Contains(got.out, noneLeft) {
				t.Fatalf("the test is of no use: %s", got.out)
			}
			reserved, err := filepath.Glob(filepath.Join(n.dir, row.dataDir, row.network, "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range reserved {
				cnitest.DateBack(n.t, file, old)
			}
			if got := add(row.id, ""); got.code != 0 {
				t.Errorf("code %d: %s", got.code, got.out)
			}
			count := make(map[string]int)
			left, err := hostlocal.New(filepath.Join(n.dir, row.dataDir)).List(t.Context())
			if err != nil {
				t.Error(err)
			}
			for _, r := range left.Reservations {
				count[r.ContainerID]++
			}
			if diff := cmp.Diff(map[string]int{"live": row.addresses, row.id: row.addresses}, count); diff != "" {
				t.Errorf("reserved: (-want +got)\n%s", diff)
			}
		})
	}
}

// A process may show any memory as its environment. That costs the plugin little memory and time.
func TestHugeEnvironment(t *testing.T) {
	n := newTestNode(t)
	n.reserve(address(0), container, old)
	showHugeEnvironment(t)
	var got outcome
	for range 5 { // reading it takes a second on a busy machine, so an ADD often lacks time
		got = n.run(func() *exec.Cmd {
			cmd := n.command(call{command: "ADD", id: container})
			// In KiB, for all that it can write to (setrlimit(2), RLIMIT_DATA). What getrusage(2) says also
			// counts what the test needed when it started the process.
			cmd.Args = append([]string{"sh", "-c", `ulimit -d 262144 && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
			return cmd
		})
		if !lackedTime(errors.New(got.out)) {
			break
		}
	}
	if got.code != 0 {
		t.Errorf("code %d: %s%s", got.code, got.out, got.stderr)
	}
}

// showHugeEnvironment makes this process show 1 GiB as its environment until the end of the test,
// as a process without capabilities can (prctl(2), PR_SET_MM_MAP).
func showHugeEnvironment(t *testing.T) {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the third on, proc(5)
	field := func(n int) (value uint64) {
		if _, err := fmt.Sscan(fields[n-3], &value); err != nil {
			t.Fatal(err)
		}
		return value
	}
	brk, _, _ := unix.Syscall(unix.SYS_BRK, 0, 0, 0)
	// struct prctl_mm_map, linux/prctl.h
	layout := struct {
		startCode, endCode, startData, endData, startBrk, brk, startStack, argStart, argEnd, envStart, envEnd, auxv uint64
		auxvSize, exe                                                                                               uint32
	}{
		field(26), field(27), field(45), field(46), field(47), uint64(brk), field(28), field(48), field(49), field(50), field(51), 0, 0, ^uint32(0),
	}
	show := func() {
		if err := unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&layout)), unsafe.Sizeof(layout), 0); err != nil {
			t.Errorf("showing another environment: %v", err)
		}
	}
	from := uint64(uintptr(unsafe.Pointer(&memory[0])))
	layout.envStart, layout.envEnd = from, from+uint64(len(memory))-1
	show()
	t.Cleanup(func() {
		layout.envStart, layout.envEnd = field(50), field(51)
		show()
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
}

// Without a reader of the result there is no second try: its reservation would be a leak.
func TestNobodyReadsStdout(t *testing.T) {
	n := newTestNode(t)
	n.fill(old)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := n.command(call{command: "ADD", id: "a"})
	cmd.Stdout = w
	if err := errors.Join(r.Close(), cmd.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it succeeded")
	}
	for ip, id := range n.reserved() {
		if id == "a" {
			t.Errorf("%s is reserved", ip)
		}
	}
}

// A network recovers even if there is no room for the lock's file: the releases make room.
func TestNoRoomForTheLock(t *testing.T) {
	n := newTestNode(t)
	if err := os.Mkdir(n.dataDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	// The root, the network's directory, host-local's lock and its note of the last address.
	if err := syscall.Mount("small", n.dataDir(), "tmpfs", 0, fmt.Sprintf("nr_inodes=%d", addresses+4)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(n.dataDir(), syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	n.reserve(address(0), "gone0", old)
	for _, name := range []string{"lock", "last_reserved_ip.0"} {
		n.write(filepath.Join(n.dataDir(), network, name), "", 0)
	}
	n.fill(old)
	if err := os.WriteFile(filepath.Join(n.dataDir(), "more"), nil, 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the test is of no use: %v", err)
	}
	if got := n.call(call{command: "ADD", id: "a"}); got.code != 0 {
		t.Error(got.out)
	}
}

// A script in the place of host-local that executes this plugin again and hides its mark does not
// cause endless processes.
func TestScriptThatHidesTheMark(t *testing.T) {
	for _, how := range []string{"exec ", ""} {
		n := newTestNode(t)
		n.bin = t.TempDir()
		copyFile(t, filepath.Join(bin, "hostlocal-gc-ipam"), n.bin+"/hostlocal-gc-ipam")
		mustWrite(t, n.bin+"/host-local", fmt.Sprintf(`#!/bin/sh
printf x >>%[1]s/count
[ $(wc -c <%[1]s/count) -gt 9 ] && exit 1 # or it would never end
%[2]senv -i CNI_COMMAND=$CNI_COMMAND CNI_CONTAINERID=$CNI_CONTAINERID CNI_NETNS=$CNI_NETNS CNI_IFNAME=$CNI_IFNAME CNI_PATH=$CNI_PATH %[1]s/hostlocal-gc-ipam
`, n.bin, how))
		got := n.call(call{command: "ADD", id: "a"})
		count, err := os.ReadFile(n.bin + "/count")
		if err != nil || len(count) != 1 || got.code == 0 || !strings.Contains(got.out, "executed as its own delegate") {
			t.Errorf("%q: executed %d times, %v: %s", how, len(count), err, got.out)
		}
	}
}
