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
		o := n.options()
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
		n.must(s.record.Close())
		listed = listed[:1] // the runtime has lost them
		s = start()
		kept("a start with the record")
		n.must(s.record.Close())
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
		t.Run(row.reason, func(t *testing.T) {
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
				t.Errorf("reserved in the server's network: %t, in another one: %t", cnitest.Exists(here), cnitest.Exists(there))
			}
		})
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
	reserved := n.reserved()
	for _, r := range reserved {
		cnitest.DateBack(t, filepath.Join(n.path("networks"), r.Network, r.IP.String()), 365*24*time.Hour) // before any boot
	}
	n.restart()
	if len(reserved) != 6 {
		t.Errorf("%d addresses were reserved before", len(reserved))
	}
	n.agree(2)
	n.mustAdd(one, "d")
	n.agree(2, "d")
}

// The upgrade: a version without a record made the attachments, one of which is leaked and one too
// young for the runtime's list. Without an answer of the runtime nothing is released, and the server
// serves. A later start with one records what is there, and releases the rest.
func TestHazard26Upgrade(t *testing.T) {
	n := newNode(t)
	direct, one := n.direct("one"), n.one()
	n.mustAdd(direct, "a", "b", sandbox("leaked"))
	n.Remove(sandbox("leaked"))
	n.dateBack()
	n.mustAdd(direct, sandbox("young"))
	n.restart("--source", "file:"+n.path("none"))
	if got := len(n.reserved()); got != 8 {
		t.Errorf("without an answer of the runtime %d addresses are reserved, want 8", got)
	}
	n.mustAdd(one, "c")
	flags := n.runtimeLists("a", "b")
	n.restart(flags...)
	if got := len(n.reserved()); got != 8 { // without that of the leak
		t.Errorf("%d addresses are reserved, want 8", got)
	}
	n.dateBack() // the runtime lists it by now
	flags = n.runtimeLists("a", "b", sandbox("young"))
	n.restart(flags...)
	n.agree(2, "a", "b", "c", sandbox("young"))
	n.must(n.del(one, "a"))
	n.agree(2, "b", "c", sandbox("young"))
}

// A server that can't start says why, and changes no file.
func TestHazard26ServerThatCannotStart(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.mustAdd(n.one(), "a")
	n.kill()
	whole, err := os.ReadFile(n.recordFile())
	n.must(err)
	for _, row := range []struct {
		reason, file, content string
		flags                 []string
		want                  string
	}{
		{"an empty record", n.recordFile(), "", nil, n.recordFile()},
		{"half a record", n.recordFile(), string(whole[:len(whole)/2]), nil, n.recordFile()},
		{"damaged intents", n.intentsFile(), "{", nil, n.intentsFile()},
		{"a file is in the place of a directory", n.path("file"), "", []string{"--state-dir", n.path("file")}, "making the directories"},
		{"likewise", n.path("file"), "", []string{"--run-dir", n.path("file")}, "making the directories"},
		{"an unknown source", n.path("file"), "", []string{"--source", "x"}, `"x"`},
		{"the name of a network is invalid", n.path("file"), "", []string{"--network", "../two"}, "../two"},
		{"the path of its socket is too long", n.path("file"), "", []string{"--run-dir", n.path(strings.Repeat("x", 99))}, "listen unix"},
	} {
		before, err := os.ReadFile(row.file)
		existed := err == nil
		n.must(os.WriteFile(row.file, []byte(row.content), 0o600))
		if n.start(row.flags...) || !strings.Contains(strings.ReplaceAll(n.log.String(), `\"`, `"`), row.want) {
			t.Errorf("%s: the server starts, or does not say %q", row.reason, row.want)
		}
		if got, err := os.ReadFile(row.file); err != nil || string(got) != row.content {
			t.Errorf("%s: the file was changed: %q, %v", row.reason, got, err)
		}
		if n.must(os.Remove(row.file)); existed {
			n.must(os.WriteFile(row.file, before, 0o600))
		}
	}
	n.restart()
	n.agree(2, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := waitForDelegates(ctx, n.path("run/lock"), logr.Discard()); !errors.Is(err, context.Canceled) {
		t.Errorf("another server runs: %v", err)
	}
}

// The directory of the socket must be that of root alone.
//
// Guard: [makePrivate].
func TestDirectoryOfTheSocket(t *testing.T) {
	for _, row := range []struct {
		reason string
		make   func(dir string) error
		ok     bool
	}{
		{"none, as after a boot", func(string) error { return nil }, true},
		{"of root alone", func(dir string) error { return os.Mkdir(dir, 0o700) }, true},
		{"as kubelet makes it for a hostPath", func(dir string) error { return os.Mkdir(dir, 0o755) }, true},
		{"a group can write", func(dir string) error { return errors.Join(os.Mkdir(dir, 0), os.Chmod(dir, 0o770)) }, false},
		{"all can write", func(dir string) error { return errors.Join(os.Mkdir(dir, 0), os.Chmod(dir, 0o777|os.ModeSticky)) }, false},
		{"others can write", func(dir string) error { return errors.Join(os.Mkdir(dir, 0), os.Chmod(dir, 0o702)) }, false},
		{"of another user", func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 65534, 0)) }, false},
		{"a link", func(dir string) error { return os.Symlink(t.TempDir(), dir) }, false},
		{"a file", func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, false},
	} {
		n := newNode(t)
		n.must(row.make(n.path("run")))
		if n.start() != row.ok || !row.ok && !strings.Contains(n.log.String(), n.path("run")) {
			t.Errorf("%s: the server starts, or not, or does not say why:\n%s", row.reason, n.log)
		}
		if info, err := os.Stat(n.path("run/" + socketName)); row.ok && (err != nil || info.Mode().Perm() != 0o600) {
			t.Errorf("%s: the socket's mode: %v, %v", row.reason, info, err)
		}
	}
}

// After a signal the server completes a running request.
func TestTheServerEnds(t *testing.T) {
	n := newNode(t)
	n.scripted()
	n.restart()
	n.Make("c")
	n.script("ADD block")
	done := make(chan error)
	go func() { done <- n.add(n.one(), "c") }()
	n.arrived()
	n.must(n.server.Process.Signal(syscall.SIGTERM))
	cnitest.Until(t, "the server no longer listens", func() bool { return !cnitest.Exists(n.path("run/" + socketName)) })
	n.goOn()
	if err := <-done; err != nil {
		t.Error(err)
	}
	server := n.server
	n.died()
	if !server.ProcessState.Success() {
		t.Errorf("after a signal: %v", server.ProcessState)
	}
	n.agree(2, "c")
}
