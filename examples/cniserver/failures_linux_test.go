// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// failing replaces the delegate bridge by one that fails the commands in the file fails, and
// writes all commands to the file asked.
func (n *node) failing() (fails, asked string) {
	n.t.Helper()
	n.ownBin("cniserver", "host-local")
	fails, asked = filepath.Join(n.dir, "fails"), filepath.Join(n.dir, "asked")
	cnitest.Write(n.t, fails, "", 0)
	script := fmt.Sprintf("#!/bin/sh\necho $CNI_COMMAND >>%s\nif grep -qx $CNI_COMMAND %s; then\n"+
		"echo '{\"cniVersion\":\"1.1.0\",\"code\":120,\"msg\":\"no '$CNI_COMMAND' today\"}'; exit 1; fi\nexec %s/bridge\n", asked, fails, cnitest.Bin())
	if err := os.WriteFile(filepath.Join(n.bin, "bridge"), []byte(script), 0o700); err != nil {
		n.t.Fatal(err)
	}
	return fails, asked
}

// Each command is forwarded, an error of the delegate is in the answer, and an attachment
// stays in the record or the intents until the delegate has succeeded (hazard 25).
func TestHazard25TheDelegateFails(t *testing.T) {
	n := newNode(t)
	fails, asked := n.failing()
	s := n.newServer()
	for _, id := range []string{"a", "b", "c"} {
		n.Make(id)
	}
	for _, id := range []string{"a", "b"} {
		if _, err := s.handle(t.Context(), n.request("ADD", id)); err != nil {
			t.Fatal(err)
		}
	}
	record := s.record.Entries()
	for _, row := range []struct {
		command, id, fails string
		intents            int // left after the command
	}{
		{"CHECK", "a", "CHECK", 0},
		{"STATUS", "", "STATUS", 0},
		{"ADD", "a", "DEL", 0}, // the old attachment can't be detached
		{"GC", "", "DEL", 2},   // also b is tried after a has failed
		{"DEL", "a", "DEL", 2},
		{"ADD", "a", "DEL", 2},      // the earlier request can't be finished
		{"ADD", "c", "ADD", 2},      // undone
		{"ADD", "c", "ADD\nDEL", 3}, // not undone
		{"DEL", "c", "", 2},
		{"GC", "", "GC", 0},
	} {
		cnitest.Write(t, fails, row.fails, 0)
		cnitest.Write(t, asked, "", 0)
		_, err := s.handle(t.Context(), n.request(row.command, row.id))
		for _, command := range strings.Fields(row.fails) {
			if want := "no " + command + " today"; err == nil || !strings.Contains(err.Error(), want) || cniError(err).Code != 120 {
				t.Errorf("%s of %q, while %q fail: %v; want it to say %q", row.command, row.id, row.fails, err, want)
			}
		}
		if row.fails == "" && err != nil {
			t.Errorf("%s of %q: %v", row.command, row.id, err)
		}
		if commands, err := os.ReadFile(asked); err != nil || !strings.Contains(string(commands), row.command) && row.fails != "DEL" {
			t.Errorf("%s was not forwarded, but %q (%v)", row.command, commands, err)
		}
		if left, err := s.intents.all(); err != nil || len(left) != row.intents {
			t.Errorf("%s of %q, while %q fail: %d intents are left, %v; want %d", row.command, row.id, row.fails, len(left), err, row.intents)
		}
		if row.fails == "GC" {
			record = nil // only the delegate's GC failed
		}
		if diff := cmp.Diff(len(record), len(s.record.Entries())); diff != "" {
			t.Errorf("%s of %q, while %q fail: recorded (-want +got):\n%s", row.command, row.id, row.fails, diff)
		}
	}
	n.agree(2)
}

// If the record can't be written, an ADD fails and is undone, and a DEL fails and keeps its
// intent. If the intent can't be written, neither begins. If it can't be removed, an ADD
// fails, since the next start would detach a live container.
func TestHazard25TheDiskFails(t *testing.T) {
	n := newNode(t)
	arrived, goOn := n.blockAt("ADD")
	s := n.newServer()
	for _, id := range []string{"a", "c"} {
		n.Make(id)
	}
	if _, err := s.handle(t.Context(), n.request("ADD", "a")); err != nil {
		t.Fatal(err)
	}
	inTheWay := n.recordFile() + ".tmp"
	if err := os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := s.handle(t.Context(), n.request("ADD", "c")); err == nil || len(n.Addresses("c")) > 0 {
		t.Fatalf("ADD without a record: %v; its namespace has %v", err, n.Addresses("c"))
	}
	if _, err := s.handle(t.Context(), n.request("DEL", "a")); err == nil {
		t.Error("DEL without a record succeeds")
	}
	if left, err := s.intents.all(); err != nil || len(left) != 1 || len(s.record.Entries()) != 1 {
		t.Errorf("%d intents are left, %v; recorded are %v", len(left), err, s.record.Entries())
	}
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}
	if _, err := s.handle(t.Context(), n.request("DEL", "a")); err != nil {
		t.Fatal(err)
	}
	n.agree(2)

	key := func(id string) checkpoint.Key { return checkpoint.Key{Network: "one", ContainerID: id, IfName: "eth0"} }
	inTheWay = s.intents.path(key("c")) + ".tmp"
	if err := os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"ADD", "DEL"} {
		if _, err := s.handle(t.Context(), n.request(command, "c")); err == nil {
			t.Errorf("%s without an intent succeeds", command)
		}
		n.agree(2)
	}
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}

	n.block()
	done := make(chan error)
	go func() { _, err := s.handle(t.Context(), n.request("ADD", "c")); done <- err }()
	arrived()
	file := s.intents.path(key("c"))
	if err := syscall.Mount(file, file, "", syscall.MS_BIND, ""); err != nil { // removing it is EBUSY
		t.Fatal(err)
	}
	goOn()
	if err := <-done; !errors.Is(err, syscall.EBUSY) || len(n.Addresses("c")) > 0 || len(s.record.Entries()) > 0 {
		t.Errorf("ADD whose intent stays: %v; its namespace has %v, recorded are %v", err, n.Addresses("c"), s.record.Entries())
	}
	if err := s.detach(t.Context(), n.request("DEL", "c"), n.delegation()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("DEL whose intent stays: %v", err)
	}
	if err := syscall.Unmount(file, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.start(t.Context(), nil); err != nil {
		t.Error(err)
	}
	n.agree(2)
}

// replace mounts a new namespace, with an interface of the same name, at the path of a
// container's. The old one stays open, so that its inode number is not used again. has reports
// whether the new interface exists.
func (n *node) replace(id string) (has func() bool) {
	n.t.Helper()
	old, err := ns.GetNS(cnitest.NetNS(id))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { old.Close() })
	n.Remove(id)
	n.Make(id)
	in := func(do func() error) error {
		return ns.WithNetNSPath(cnitest.NetNS(id), func(ns.NetNS) error { return do() })
	}
	if err := in(func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}) }); err != nil {
		n.t.Fatal(err)
	}
	return func() bool {
		return in(func() error { _, err := netlink.LinkByName("eth0"); return err }) == nil
	}
}

// The interface of another container, whose namespace is now at the path of an old one, is
// not removed: by the intent, by a GC with the recorded path, or by a repeated ADD.
func TestOtherNamespaceAtTheSamePath(t *testing.T) {
	for _, row := range []struct {
		reason string
		begin  func(s *server, n *node) error
		then   func(s *server, n *node) error
	}{
		{"an intent", func(s *server, n *node) error {
			r := n.request("ADD", "c")
			return s.intents.write(&intent{request: *r, Network: "one", NetNSID: netnsID(r.NetNS)})
		}, func(s *server, n *node) error { return s.start(n.t.Context(), nil) }},
		{"the intent of a DEL", func(s *server, n *node) error {
			r := n.request("DEL", "c")
			r.Path = "" // the delegate is not found
			if s.del(n.t.Context(), r, n.delegation()) == nil {
				return errors.New("the DEL succeeds")
			}
			left, err := s.intents.all()
			if err != nil || len(left) != 1 {
				return fmt.Errorf("%d intents: %w", len(left), err)
			}
			left[0].Path = n.bin // it is found again
			return s.intents.write(left[0])
		}, func(s *server, n *node) error { return s.start(n.t.Context(), nil) }},
		{"a GC", func(s *server, n *node) error { _, err := s.handle(n.t.Context(), n.request("ADD", "c")); return err },
			func(s *server, n *node) error { _, err := s.handle(n.t.Context(), n.request("GC", "")); return err }},
		{"an ADD with another path", func(s *server, n *node) error { _, err := s.handle(n.t.Context(), n.request("ADD", "c")); return err },
			func(s *server, n *node) error {
				r := n.request("ADD", "c")
				r.NetNS = cnitest.NetNS("d")
				if _, err := s.handle(n.t.Context(), r); err != nil {
					return err
				}
				r.Command = "DEL"
				_, err := s.handle(n.t.Context(), r)
				return err
			}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			s := n.newServer()
			n.Make("c")
			n.Make("d")
			if err := row.begin(s, n); err != nil {
				t.Fatal(err)
			}
			has := n.replace("c")
			if err := row.then(s, n); err != nil || !has() {
				t.Errorf("%v; the other container has its interface: %t", err, has())
			}
			n.agree(2)
		})
	}
}

// A repeated ADD with a new namespace detaches the old one, which is in the record or in the
// intent of an interrupted ADD.
func TestADDIsRepeatedWithAnotherNamespace(t *testing.T) {
	for _, row := range []struct {
		reason string
		first  func(s *server, n *node, r *request) error
	}{
		{"recorded", func(s *server, n *node, r *request) error { _, err := s.handle(n.t.Context(), r); return err }},
		{"plumbed, and its server died", func(s *server, n *node, r *request) error {
			_, err := s.delegate(n.t.Context(), "ADD", r, n.delegation())
			return errors.Join(err, s.intents.write(&intent{request: *r, Network: "one", NetNSID: netnsID(r.NetNS)}))
		}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			s := n.newServer()
			for _, id := range []string{"a", "c", "d"} {
				n.Make(id)
			}
			if _, err := s.handle(t.Context(), n.request("ADD", "a")); err != nil { // another container
				t.Fatal(err)
			}
			r := n.request("ADD", "c")
			if err := row.first(s, n, r); err != nil || len(n.Addresses("c")) != 2 {
				t.Fatalf("%v; its namespace has %v", err, n.Addresses("c"))
			}
			again := *r
			again.NetNS = cnitest.NetNS("d")
			if _, err := s.handle(t.Context(), &again); err != nil {
				t.Fatal(err)
			}
			if had, has := n.Addresses("c"), n.Addresses("d"); len(had) != 0 || len(has) != 2 || len(n.holding().Reserved) != 4 {
				t.Errorf("the old namespace has %v, the new one %v, reserved are %v", had, has, n.holding().Reserved)
			}
		})
	}
}

// A DEL succeeds and releases even if the namespace is already gone.
func TestDELWithoutItsNamespace(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	for _, row := range []struct {
		reason string
		netns  func(path string) string
	}{
		{"its path is gone", func(path string) string { return path }},
		{"its mount is gone, and the mount point is left", func(path string) string {
			cnitest.Write(t, path, "", 0)
			return path
		}},
		{"the runtime does not name it", func(string) string { return "" }},
	} {
		n.Make("c")
		r := n.request("ADD", "c")
		if _, err := s.handle(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		n.Remove("c")
		r.Command, r.NetNS = "DEL", row.netns(r.NetNS)
		if _, err := s.handle(t.Context(), r); err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		n.agree(2)
		if r.NetNS != "" {
			_ = os.Remove(r.NetNS) // it may not exist
		}
	}
}

// If an interface can't be removed, as lo, its address is kept: unplumbing comes before
// releasing.
func TestHazard25AnInterfaceThatStays(t *testing.T) {
	n := newNode(t)
	s := n.newServer()
	n.Make("c")
	held := cnitest.Reserve(t, n.dataDir(), "one", "10.9.1.7", "c", 0)
	cnitest.Write(t, held, "c\r\nlo", 0)
	r := n.request("DEL", "c")
	r.IfName = "lo"
	if _, err := s.handle(t.Context(), r); err == nil || !strings.Contains(err.Error(), "removing interface lo") || !cnitest.Exists(held) {
		t.Errorf("%v; the address is reserved: %t", err, cnitest.Exists(held))
	}
	if left, err := s.intents.all(); err != nil || len(left) != 1 {
		t.Errorf("%d intents are left, %v", len(left), err)
	}
}

// The server completes a running request after a signal.
func TestSignalDuringAnADD(t *testing.T) {
	n := newNode(t)
	arrived, goOn := n.blockAt("ADD")
	n.restart()
	n.Make("c")
	n.block()
	done := make(chan error)
	go func() { _, err := n.add(n.list("one", dual), "c"); done <- err }()
	arrived()
	if err := n.server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cnitest.Until(t, "the server no longer listens", func() bool { return !cnitest.Exists(n.socket()) })
	goOn()
	if err := <-done; err != nil {
		t.Error(err)
	}
	n.died()
	n.agree(2, "c")
}

// A second server waits for the first one, at most twice its time limit.
func TestTwoServers(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.mustAdd(n.list("one", dual), "a")
	o := n.serveOptions()
	o.timeout = 1 // a nanosecond
	if err := o.run(t.Context()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "serving.lock") {
		t.Errorf("a second server: %v", err)
	}
	n.mustDel(n.list("one", dual), "a")
	n.agree(2)
}

// An error of the server reaches the runtime with its code, even if it is wrapped, and with
// all of its text.
func TestErrorsAreCNIErrors(t *testing.T) {
	code := types.NewError(types.ErrTryAgainLater, "later", "in an hour")
	for _, row := range []struct {
		reason string
		err    error
		want   *types.Error
	}{
		{"as it is", code, code},
		{"wrapped", fmt.Errorf("asking: %w", code), types.NewError(types.ErrTryAgainLater, "asking: later; in an hour", "")},
		{"without a code", errors.New("no"), types.NewError(types.ErrInternal, "no", "")},
		{"code 0 means no code", &types.Error{Msg: "no"}, types.NewError(types.ErrInternal, "no", "")},
	} {
		if diff := cmp.Diff(row.want, cniError(row.err)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
	var e *types.Error
	socket := filepath.Join(t.TempDir(), "s")
	if _, err := send(socket, &request{}); !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
		t.Errorf("without a server: %v", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // a server that is killed while it answers
		c, err := l.Accept()
		if err == nil {
			_, err = http.ReadRequest(bufio.NewReader(c))
		}
		if err == nil {
			_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
		}
		if err = errors.Join(err, c.Close()); err != nil {
			t.Error(err)
		}
	}()
	if answer, err := send(socket, &request{}); !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
		t.Errorf("half an answer: %q, %v", answer, err)
	}
}
