// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// libcni calls the plugin as a runtime does, with each version and delegate.
func TestLibcni(t *testing.T) {
	for _, row := range []struct {
		reason, version, plugin string
		each                    int
	}{
		{"the newest version", "1.1.0", "bridge", 1},
		{"the other delegate, two addresses each", "1.1.0", "ptp", 2},
		{"results of version 1.0.0", "1.0.0", "bridge", 2},
		{"the oldest version that has CHECK", "0.4.0", "ptp", 1},
		{"the oldest version", "0.3.1", "bridge", 2},
	} {
		t.Run(row.version+" "+row.plugin, func(t *testing.T) {
			n := newNode(t)
			n.restart()
			list := n.list("one", row.version, row.plugin, row.each)
			n.mustAdd(list, "a")
			n.Make("b")
			runtime := n.cni() // with the result of b in its cache
			_, err := runtime.AddNetworkList(t.Context(), list, runtimeConf("b"))
			n.must(err)
			n.agree(row.each, "a", "b")
			if content, err := os.ReadFile(n.recordFile()); err != nil || !strings.Contains(string(content), "web-a") {
				t.Errorf("%s: the pod of CNI_ARGS is not recorded: %v", row.reason, err)
			}
			if row.version != "0.3.1" {
				n.must(runtime.CheckNetworkList(t.Context(), list, runtimeConf("b")))
			}
			if row.version == "1.1.0" {
				n.must(n.cni().GetStatusNetworkList(t.Context(), list))
			}
			if err := n.add(list, "a"); err == nil {
				t.Errorf("%s: a second ADD succeeds", row.reason)
			}
			n.agree(row.each, "a", "b")
			n.must(n.del(list, "a"))
			n.agree(row.each, "b")
			n.must(n.del(list, "a")) // again, as kubelet does
			n.must(n.del(list, "b"))
			n.agree(row.each)
		})
	}
}

// The server refuses a request before its first step, with a code, and says why.
func TestRefused(t *testing.T) {
	n := newNode(t)
	n.Make("a")
	var e *types.Error
	if err := n.add(n.one(), "a"); !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
		t.Errorf("without a server: %v", err)
	}
	n.must(os.Mkdir(n.path("state"), 0o755)) // as kubelet makes it for a hostPath: anybody could lock it
	n.restart()
	for path, mode := range map[string]os.FileMode{"run/" + socketName: 0o600, "state": 0o700} {
		if info, err := os.Stat(n.path(path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("the mode of %s: %v, %v", path, info, err)
		}
	}
	for _, row := range []struct{ reason, old, new, want string }{
		{"a network that is not served", `"name":"one"`, `"name":"three"`, "--network three"},
		{"an unsupported IPAM plugin", `"type":"host-local"`, `"type":"dhcp"`, "host-local"},
		{"another data directory", n.path("networks"), n.path("other"), "dataDir"},
		{"no data directory, so that it is the default of host-local", `"dataDir":"` + n.path("networks") + `",`, "", "dataDir"},
		{"rules that a DEL could not remove", `"isGateway":true`, `"ipMasq":true`, "ipMasq"},
		{"no delegate", `"delegate"`, `"delegates"`, "delegate"},
		{"null for it", `"delegate":`, `"delegate":null,"x":`, "host-local"},
		{"a delegate of the wrong type", `"type":"bridge"`, `"type":7`, `reading "delegate"`},
	} {
		list := n.parse(strings.ReplaceAll(string(n.one().Bytes), row.old, row.new))
		if err := n.add(list, "a"); !errors.As(err, &e) || e.Code != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", row.reason, err)
		}
	}
	args := n.args("a")
	args.Args = strings.Repeat("x", 1<<20)
	if _, err := send(n.path("run/"+socketName), "ADD", &args); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a request that is too large: %v", err)
	}
	n.agree(1)
}

// A GC detaches the recorded attachments that are not valid, and releases what is not recorded and
// not young, in its network and in no other. Without a list it does nothing.
//
// Guard: the networks in [server.gc], and its minimum ages.
func TestHazard74GCOfOneNetwork(t *testing.T) {
	n := newNode(t)
	n.restart(append(n.runtimeLists("other"), "--gc-min-age", "0")...) // so that the record speaks of what is old
	one, two := n.one(), n.list("two", "1.1.0", "bridge", 2)
	n.mustAdd(one, "a", "b")
	n.mustAdd(two, "c")
	reserve := func(network, ip, id string, age time.Duration) string {
		return cnitest.Reserve(t, n.path("networks"), network, ip, id, age)
	}
	const margin = 20 * time.Second
	leak := reserve("one", "10.9.1.200", sandbox("leak"), gc.DefaultMinAge+margin)
	kept := map[string]string{
		"a young one":              reserve("one", "10.9.1.201", sandbox("young"), gc.DefaultMinAge-margin),
		"a valid one":              reserve("one", "10.9.1.202", sandbox("valid"), time.Hour),
		"one in another network":   reserve("two", "10.9.2.200", sandbox("there"), time.Hour),
		"one that is not a server": reserve("three", "10.9.3.200", sandbox("unserved"), time.Hour),
	}
	err := n.cni().GCNetworkList(t.Context(), one, nil)
	if err == nil || !strings.Contains(err.Error(), "valid-attachments") || !cnitest.Exists(leak) {
		t.Errorf("a GC without a list (hazard 27): %v; the leak is kept: %t", err, cnitest.Exists(leak))
	}
	n.must(n.gc(one, "a", sandbox("valid")))
	for what, file := range kept {
		if !cnitest.Exists(file) {
			t.Errorf("a GC released %s", what)
		}
		n.must(os.Remove(file))
	}
	if cnitest.Exists(leak) {
		t.Error("a GC keeps a leak")
	}
	n.agree(2, "a", "c")
	n.restart() // with the default minimum age
	n.must(n.gc(one))
	n.agree(2, "a", "c")
}

// An ADD that finds no free address triggers a pass, which releases leaks.
func TestFullPoolTriggersAPass(t *testing.T) {
	n := newNode(t)
	n.restart(n.runtimeLists("other")...)
	small := n.parse(strings.ReplaceAll(string(n.list("one", "1.1.0", "ptp", 1).Bytes), "10.9.1.0/24", "10.9.1.0/30"))
	leak := cnitest.Reserve(t, n.path("networks"), "one", "10.9.1.2", sandbox("gone"), time.Hour)
	n.Make("a")
	if err := n.add(small, "a"); err == nil || !strings.Contains(err.Error(), "no IP addresses available") {
		t.Errorf("ADD in a full network: %v", err)
	}
	cnitest.Until(t, "the pass has released the leak", func() bool { return !cnitest.Exists(leak) })
	n.mustAdd(small, "a")
	n.agree(1, "a")
}

// waiting reports whether a goroutine waits for a lock in handle, according to its stack.
func waiting(lock string) bool {
	stacks := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if state, _, _ := strings.Cut(g, "\n"); strings.Contains(state, "["+lock) && strings.Contains(g, ".handle(") {
			return true
		}
	}
	return false
}

// A GC runs alone, other requests one at a time for each container, and STATUS at any time. The
// time limit begins after the wait. If the plugin ends during it, the request is dropped. The list of a GC that waits expires.
func TestConflictingRequestsWait(t *testing.T) {
	n := newNode(t)
	n.scripted()
	s := n.newServer()
	n.Make("a")
	for _, row := range []struct{ during, id, command, lock string }{
		{"ADD", "a", "GC", "sync.RWMutex.Lock"},
		{"GC", "", "ADD", "sync.RWMutex.RLock"},
		{"ADD", "a", "DEL", "sync.Mutex.Lock"},
		{"DEL", "a", "CHECK", "sync.Mutex.Lock"},
		{"GC", "", "STATUS", ""},
		{"ADD", "b", "DEL", ""},
	} {
		n.script(row.during + " block")
		n.Make("b")
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := s.handle(t.Context(), row.during, n.args(row.id)); first <- err }()
		n.arrived()
		invalid := n.args("") // is refused before it waits: the age of a list counts since it was received
		invalid.StdinData = bytes.Replace(invalid.StdinData, []byte("valid-attachments"), []byte("x"), 1)
		if _, err := s.handle(t.Context(), "GC", invalid); err == nil {
			t.Error("a GC without a list succeeds")
		}
		go func() { _, err := s.handle(ctx, row.command, n.args("a")); second <- err }()
		if row.lock == "" {
			if err := <-second; err != nil || len(first) > 0 {
				t.Errorf("%s during %s: %v", row.command, row.during, err)
			}
			n.goOn()
		} else {
			cnitest.Until(t, row.command+" waits", func() bool { return waiting(row.lock) || len(second) > 0 })
			cancel() // the plugin ends
			n.goOn()
			var e *types.Error
			if err := <-second; !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
				t.Errorf("%s during %s, and the plugin ended: %v", row.command, row.during, err)
			}
		}
		cancel()
		n.must(<-first)
		_, err := s.handle(t.Context(), "DEL", n.args("a"))
		n.must(err)
		_, err = s.handle(t.Context(), "DEL", n.args("b"))
		n.must(err)
	}
	n.agree(2)
	s.gcMinAge = 1 // a nanosecond
	if _, err := s.handle(t.Context(), "GC", n.args("")); err == nil || !strings.Contains(err.Error(), "old, and counts for") {
		t.Errorf("a GC whose list is older than an attachment that it detaches: %v", err)
	}
	s.timeout = 1
	if _, err := s.handle(t.Context(), "STATUS", n.args("a")); err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Errorf("with a time limit of 1ns: %v", err)
	}
}

// If a plugin is killed during its ADD, and the server then gets a signal, the server completes the
// ADD. An ADD whose time limit ends is undone.
func TestADDIsCompleted(t *testing.T) {
	n := newNode(t)
	n.scripted()
	n.restart()
	n.Make("c")
	n.script("ADD block")
	ctx, kill := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := n.cni().AddNetworkList(ctx, n.one(), runtimeConf("c")); done <- err }()
	n.arrived()
	kill()
	if err := <-done; err == nil {
		t.Error("the runtime gets a result of a plugin that is killed")
	}
	n.must(n.server.Process.Signal(syscall.SIGTERM))
	cnitest.Until(t, "the server no longer listens", func() bool { return !cnitest.Exists(n.path("run/" + socketName)) })
	n.goOn()
	n.died()
	n.restart()
	n.agree(2, "c")
	n.must(n.del(n.one(), "c"))
	n.kill()
	s := n.newServer()
	n.must(os.Remove(n.path("asked")))
	r, err := s.newRequest(n.args("c"))
	n.must(err)
	n.script("ADD block")
	ctx, kill = context.WithCancel(t.Context())
	go func() { _, err := s.add(ctx, r); done <- err }()
	n.arrived()
	kill()
	err = <-done // although a process that the delegate has started hangs
	asked, read := os.ReadFile(n.path("asked"))
	if err == nil || read != nil || !strings.Contains(string(asked), "DEL") {
		t.Errorf("an ADD after its time limit: %v; the delegate was asked for %q", err, asked)
	}
	n.agree(2)
}

// An ADD by the version without a record begins before this version starts again and ends after
// it: its address is kept by that start, by the next one, by a GC and by the passes, and is recorded
// once the runtime lists its container. What an ADD left behind that was killed is released then.
//
// Guard: [server.start] and [server.backfillAgain] do a [server.backfill] at every start, with the
// default [checkpoint.Options.Lag]; [server.gc] asserts nothing.
func TestHazard93AnADDOfAnotherVersionEndsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		o := parse(n.flags())
		o.sources = []string{"file:none"} // replaced below
		n.must(errors.Join(os.Mkdir(o.runDir, 0o700), os.Mkdir(o.stateDir, 0o700)))
		before, after, leak := sandbox("before"), sandbox("after"), sandbox("leak")
		listed := []string{sandbox("a")}
		start := func() *server {
			t.Helper()
			s, err := newServer(o, logr.Discard())
			n.must(err)
			s.source = podsource.Func(func(context.Context) (pods []podsource.Pod, err error) {
				for _, id := range listed {
					pods = append(pods, podsource.Pod{ContainerIDs: []string{id}})
				}
				return pods, nil
			})
			n.must(s.start(t.Context()))
			return s
		}
		pass := func(s *server) {
			t.Helper()
			time.Sleep(10 * time.Minute)
			_, err := s.loop.Reconcile(t.Context())
			n.must(err)
		}
		var live []string
		reserve := func(ip, id string) string {
			file := cnitest.Reserve(t, o.dataDir, "one", ip, id, 0)
			cnitest.DateBack(t, file, 0) // by the clock of the test
			live = append(live, file)
			return file
		}
		kept := func(when string) {
			t.Helper()
			for _, file := range live {
				if !cnitest.Exists(file) {
					t.Fatalf("%s: %s was released", when, filepath.Base(file))
				}
			}
		}

		reserve("10.9.1.2", sandbox("a"))
		time.Sleep(time.Hour)
		s := start() // the first one
		n.must(s.record.Close())
		time.Sleep(time.Hour) // of the version without a record
		reserve("10.9.1.3", before)
		left := reserve("10.9.1.4", leak)
		time.Sleep(10 * time.Second)
		s = start()
		time.Sleep(10 * time.Second)
		reserve("10.9.1.5", after)
		kept("the start")
		time.Sleep(10 * time.Second)
		n.must(s.record.Close())
		s = start()
		kept("the next start")
		args := n.args("")
		args.StdinData = bytes.Replace(args.StdinData, []byte("[]"), fmt.Appendf(nil, `[{"containerID":%q,"ifname":"eth0"}]`, sandbox("a")), 1)
		_, err := s.handle(t.Context(), "GC", args)
		n.must(err)
		kept("a GC")
		listed = append(listed, before, after)
		live = []string{live[0], live[1], live[3]}
		for range 4 {
			pass(s)
			kept("a pass")
		}
		for _, id := range []string{before, after} {
			if _, ok := s.record.Get(checkpoint.Key{Network: "one", ContainerID: id, IfName: "eth0"}); !ok {
				t.Errorf("the container %s is not recorded", id)
			}
		}
		if cnitest.Exists(left) {
			t.Error("the leak is kept")
		}
		n.must(s.record.Close())
		listed, live = listed[1:], live[1:] // as a sandbox of before the boot, once kubelet has removed it
		start()
		if kept("a later start"); cnitest.Exists(filepath.Join(o.dataDir, "one", "10.9.1.2")) {
			t.Error("what the runtime does not list any more is kept")
		}
	})
}

// The server's intents are all ADDs in flight of its own networks alone, and only once no ADD of a
// server before it can be in flight. In another network an ADD of another plugin may have reserved
// an address just now, by a clock that was hours behind (hazard 80).
//
// Guard: SeesADDs in [intents.Pods], and [intents.Rank].
func TestHazard116IntentsOfOneNetwork(t *testing.T) {
	for _, row := range []struct {
		reason   string
		opened   time.Duration // ago
		released bool
	}{
		{"another server's ADD may be in flight", checkpoint.DefaultLag - time.Minute, false},
		{"all ADDs are of this server, also one that ends between two questions (hazard 58)", checkpoint.DefaultLag + time.Minute, true},
	} {
		n := newNode(t)
		s := n.newServer()
		s.intents.networks, s.intents.opened = []string{"one"}, time.Now().Add(-row.opened)
		const beforeTheBoot = 48 * time.Hour
		here := cnitest.Reserve(t, n.path("networks"), "one", "10.9.1.2", sandbox("leak"), beforeTheBoot)
		there := cnitest.Reserve(t, n.path("networks"), "two", "10.9.2.2", sandbox("live"), beforeTheBoot)
		records := podsource.Attachments([]string{"one", "two"}, podsource.Always, func(context.Context) ([]podsource.Attachment, error) {
			return []podsource.Attachment{{Network: "two", ContainerID: sandbox("another")}}, nil
		})
		r, err := gc.New(s.store, []string{"one", "two"}, podsource.Union(s.intents, records), gc.Options{})
		n.must(err)
		_, err = r.Reconcile(t.Context())
		n.must(err)
		if cnitest.Exists(here) == row.released || !cnitest.Exists(there) {
			t.Errorf("%s: reserved in the server's network: %t, in another one: %t", row.reason, cnitest.Exists(here), cnitest.Exists(there))
		}
		answer, err := podsource.Union(s.record, s.intents).Pods(t.Context())
		if err != nil || answer.Parts[0].Source != "intents" {
			t.Errorf("%s: asked first: %+v, %v", row.reason, answer.Parts, err)
		}
	}
}

// After a boot of the node the record is of another boot and the intents are gone. All that was
// reserved before is released in the hook, with the record alone.
func TestHazard110Reboot(t *testing.T) {
	n := newNode(t)
	n.scripted()
	n.restart()
	one, gone := n.one(), []string{sandbox("a"), sandbox("b")}
	n.mustAdd(one, gone...)
	n.Make(sandbox("c"))
	n.script("ADD after")
	if err := n.add(one, sandbox("c")); err == nil {
		t.Fatal("the server was killed, and the ADD succeeds")
	}
	n.died()
	n.script()
	const bootID = "/proc/sys/kernel/random/boot_id"
	cnitest.Write(t, n.path("boot_id"), "another", 0)
	n.must(syscall.Mount(n.path("boot_id"), bootID, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { n.must(syscall.Unmount(bootID, 0)) })
	n.must(os.RemoveAll(n.path("run")))
	for _, id := range append(gone, sandbox("c")) {
		n.Remove(id)
	}
	n.dateBack(365 * 24 * time.Hour) // before any boot
	n.restart()
	n.agree(2)
}

// After a version without a record nothing is released before the runtime answers. Then what is there
// is recorded, and the rest released. After a rollback, the next upgrade forgets what has lost its
// namespace. A file of a live container that is damaged, before or after it is recorded, is kept (hazard 84).
//
// Guard: [server.backfill].
func TestHazard26RollbackAndUpgrade(t *testing.T) {
	n := newNode(t)
	a, b, c := sandbox("a"), "b", sandbox("c")
	n.mustAdd(n.direct("one"), a, b, sandbox("leaked")) // which gets 10.9.1.4
	n.Remove(sandbox("leaked"))
	n.dateBack(time.Hour)
	n.restart("--source", "file:"+n.path("none"))
	n.mustAdd(n.one(), c)
	damage := func() {
		files := []string{n.path("networks/one/10.9.1.3"), n.path("networks/one/fd00:1::3")}
		for _, file := range files {
			cnitest.Write(t, file, "", time.Hour)
		}
		n.restart("--source", "file:"+n.path("runtime.json"))
		for _, file := range files {
			if !cnitest.Exists(file) {
				t.Errorf("%s is lost after it was damaged, and its container lives", file)
			}
			cnitest.Write(t, file, b+"\r\neth0", time.Hour)
		}
	}
	pods := fmt.Appendf(nil, `[{"containerIDs":[%q]},{"containerIDs":["b"],"ips":["10.9.1.3","fd00:1::3"]}]`, a)
	n.must(os.WriteFile(n.path("runtime.json"), pods, 0o600))
	if damage(); len(n.reserved()) != 8 {
		t.Errorf("without an answer of the runtime %d addresses are reserved, want 8", len(n.reserved()))
	}
	n.restart(n.runtimeLists(a, b)...)
	n.agree(2, a, b, c)
	damage()
	n.kill()
	n.Remove(c) // its DEL never comes
	n.dateBack(time.Hour)
	n.restart(n.runtimeLists(a, b)...)
	n.agree(2, a, b)
	if content, err := os.ReadFile(n.recordFile()); err != nil || strings.Contains(string(content), c) {
		t.Errorf("a container without a namespace is still recorded: %s, %v", content, err)
	}
}

// A server that can't start says why, and changes no file.
func TestHazard26ServerThatCannotStart(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.mustAdd(n.one(), "a")
	n.kill()
	n.must(os.WriteFile(n.path("file"), nil, 0o600))
	for _, row := range []struct {
		reason, flag, arg string
		file, content     string // that is damaged
		want              string
	}{
		{"an empty record", "", "", n.recordFile(), "", n.recordFile()},
		{"damaged intents", "", "", n.intentsFile(), "{", n.intentsFile()},
		{"a file is in the place of a directory", "--state-dir", n.path("file"), n.path("file"), "", "making the directories"},
		{"a link in its place", "--run-dir", "/proc/self/cwd", n.path("file"), "", "not a link"},
		{"the name of a network is invalid", "--network", "../two", n.path("file"), "", "../two"},
		{"the path of its socket is too long", "--run-dir", n.path(strings.Repeat("x", 99)), n.path("file"), "", "listen unix"},
	} {
		before, err := os.ReadFile(row.file)
		n.must(err)
		n.must(os.WriteFile(row.file, []byte(row.content), 0o600))
		if n.start(strings.Fields(row.flag+" "+row.arg)...) || !strings.Contains(n.log.String(), row.want) {
			t.Errorf("%s: the server starts, or does not say %q", row.reason, row.want)
			n.kill()
		}
		if got, err := os.ReadFile(row.file); err != nil || string(got) != row.content {
			t.Errorf("%s: the file was changed: %q, %v", row.reason, got, err)
		}
		n.must(os.WriteFile(row.file, before, 0o600))
	}
	n.restart()
	n.agree(2, "a")
}

// The directory of the socket must be that of root alone, and nobody else may replace it.
//
// Guard: [makePrivate].
func TestDirectoryOfTheSocket(t *testing.T) {
	for _, row := range []struct {
		reason string
		make   func(dir string) error
		ok     bool
	}{
		{"none, as after a boot", func(string) error { return nil }, true},
		{"as kubelet makes it for a hostPath", func(dir string) error { return os.Mkdir(dir, 0o755) }, true},
		{"a group can write", func(dir string) error { return errors.Join(os.Mkdir(dir, 0), os.Chmod(dir, 0o770)) }, false},
		{"others can write", func(dir string) error { return errors.Join(os.Mkdir(dir, 0), os.Chmod(dir, 0o702|os.ModeSticky)) }, false},
		{"of another user", func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 65534, 0)) }, false},
		{"a link", func(dir string) error { return os.Symlink(t.TempDir(), dir) }, false},
		{"all can write above it", func(dir string) error { return os.Chmod(filepath.Dir(dir), 0o777) }, false},
		{"... but remove only what is theirs", func(dir string) error { return os.Chmod(filepath.Dir(dir), 0o777|os.ModeSticky) }, true},
		{"below a directory of another user", func(dir string) error { return os.Chown(filepath.Dir(dir), 65534, 0) }, false},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		if err := row.make(dir); err != nil {
			t.Fatal(err)
		}
		if err := makePrivate(dir); (err == nil) != row.ok || err != nil && !strings.Contains(err.Error(), filepath.Dir(dir)) {
			t.Errorf("%s: %v", row.reason, err)
		}
	}
}
