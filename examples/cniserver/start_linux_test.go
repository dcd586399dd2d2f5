// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

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
			time.Sleep(gc.DefaultInterval)
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
		pass(s)
		kept("a first start")
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
	})
}

// The server's intents are all ADDs in flight of its own networks alone, and only once no ADD of a
// server before it can be in flight. In another network an ADD of another plugin may have reserved
// an address just now, by a clock that was hours behind (hazard 80).
//
// Guard: SeesADDs in [intents.Pods].
func TestHazard116IntentsOfOneNetwork(t *testing.T) {
	for _, row := range []struct {
		reason   string
		opened   time.Duration // ago
		released bool
	}{
		{"another server's ADD may be in flight", checkpoint.DefaultLag - time.Minute, false},
		{"all ADDs are of this server", checkpoint.DefaultLag + time.Minute, true},
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
	}
}

// The intents are asked before the record: an ADD that ends between the two questions is in one of
// the answers.
//
// Guard: [intents.Rank].
func TestHazard58IntentsAreAskedFirst(t *testing.T) {
	s := newNode(t).newServer()
	answer, err := podsource.Union(s.record, s.intents).Pods(t.Context())
	if err != nil || answer.Parts[0].Source != "intents" {
		t.Errorf("asked first: %+v, %v", answer.Parts, err)
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
	for _, r := range n.reserved() {
		cnitest.DateBack(t, filepath.Join(n.path("networks"), r.Network, r.IP.String()), 365*24*time.Hour) // before any boot
	}
	n.restart()
	n.agree(2)
}

// After a version without a record nothing is released before the runtime answers. Then what is there
// is recorded, and the rest released. A later start forgets and releases what has lost its namespace.
func TestHazard26Upgrade(t *testing.T) {
	n := newNode(t)
	n.mustAdd(n.direct("one"), "a", sandbox("leaked"))
	n.Remove(sandbox("leaked"))
	n.dateBack()
	n.restart("--source", "file:"+n.path("none"))
	n.mustAdd(n.one(), sandbox("b"))
	if got := len(n.reserved()); got != 6 {
		t.Errorf("without an answer of the runtime %d addresses are reserved, want 6", got)
	}
	n.restart(n.runtimeLists("a")...)
	n.agree(2, "a", sandbox("b"))
	n.Remove(sandbox("b")) // its DEL never comes
	n.dateBack()
	n.restart(n.runtimeLists("a")...)
	n.agree(2, "a")
	if content, err := os.ReadFile(n.recordFile()); err != nil || strings.Contains(string(content), sandbox("b")) {
		t.Errorf("a container without a namespace is still recorded: %s, %v", content, err)
	}
}

// A container of the version without a record is recorded by an upgrade, and ends after a rollback. The next upgrade forgets
// it, so that a leak at its address is released. A container that lives is still recorded.
//
// Guard: [server.forget].
func TestHazard26RollbackAndUpgrade(t *testing.T) {
	n := newNode(t)
	a, b := sandbox("a"), sandbox("b")
	n.mustAdd(n.direct("one"), a, b)
	n.dateBack()
	n.restart(n.runtimeLists(a, b)...)
	n.kill()
	n.must(n.del(n.direct("one"), a))
	n.Remove(a)
	leak := cnitest.Reserve(t, n.path("networks"), "one", "10.9.1.2", sandbox("leak"), time.Hour)
	n.restart(n.runtimeLists(b)...)
	if cnitest.Exists(leak) {
		t.Error("the leak at the address of a container that has ended is kept")
	}
	n.agree(2, b)
}

// A server that can't start says why, and changes no file.
func TestHazard26ServerThatCannotStart(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.mustAdd(n.one(), "a")
	n.kill()
	n.must(os.WriteFile(n.path("file"), nil, 0o600))
	record, err := os.ReadFile(n.recordFile())
	n.must(err)
	for _, row := range []struct {
		reason, flag, arg string
		file, content     string // that is damaged
		want              string
	}{
		{"an empty record", "", "", n.recordFile(), "", n.recordFile()},
		{"half a record", "", "", n.recordFile(), string(record[:len(record)/2]), n.recordFile()},
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
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := waitForDelegates(ctx, n.path("run/lock"), logr.Discard()); !errors.Is(err, context.Canceled) {
		t.Errorf("another server runs: %v", err)
	}
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
		{"all can write", func(dir string) error { return errors.Join(os.Mkdir(dir, 0), os.Chmod(dir, 0o777|os.ModeSticky)) }, false},
		{"others can write", func(dir string) error { return errors.Join(os.Mkdir(dir, 0), os.Chmod(dir, 0o702)) }, false},
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
