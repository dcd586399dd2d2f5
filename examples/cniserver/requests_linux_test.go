// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
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
				if err := runtime.CheckNetworkList(t.Context(), list, runtimeConf("b")); err != nil {
					t.Errorf("%s: CHECK: %v", row.reason, err)
				}
			}
			if row.version == "1.1.0" {
				if err := n.cni().GetStatusNetworkList(t.Context(), list); err != nil {
					t.Errorf("%s: STATUS: %v", row.reason, err)
				}
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

// The server refuses a request before its first step, and says why.
func TestRefused(t *testing.T) {
	n := newNode(t)
	n.restart()
	n.Make("a")
	for _, row := range []struct{ reason, old, new, want string }{
		{"a network that is not served", `"name":"one"`, `"name":"three"`, "--network three"},
		{"an unsupported IPAM plugin", `"type":"host-local"`, `"type":"dhcp"`, "host-local"},
		{"another data directory", n.path("networks"), n.path("other"), "dataDir"},
		{"no data directory, so that it is the default of host-local", `"dataDir":"` + n.path("networks") + `",`, "", "dataDir"},
		{"rules that a DEL could not remove", `"isGateway":true`, `"ipMasq":true`, "ipMasq"},
		{"no delegate", `"delegate"`, `"delegates"`, "delegate"},
		{"null for it", `"delegate":`, `"delegate":null,"x":`, "host-local"},
		{"a delegate of the wrong type", `"type":"bridge"`, `"type":7`, `reading \"delegate\"`},
		{"a delegate that is not installed", `"type":"bridge"`, `"type":"none"`, `failed to find plugin`},
		{"a socket of the wrong type", `"socket":`, `"socket":7,"x":`, `reading the network configuration`},
	} {
		list := n.parse(strings.ReplaceAll(string(n.one().Bytes), row.old, row.new))
		if err := n.add(list, "a"); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `"`, `\"`), row.want) {
			t.Errorf("%s: %v", row.reason, err)
		}
	}
	for _, row := range []struct {
		reason, command string
		change          func(args *skel.CmdArgs)
		want            string
	}{
		{"an unknown command", "X", func(*skel.CmdArgs) {}, "CNI_COMMAND"},
		{"a request that is too large", "ADD", func(args *skel.CmdArgs) { args.Args = strings.Repeat("x", 1<<20) }, "too large"},
		{"a container ID that is a path", "ADD", func(args *skel.CmdArgs) { args.ContainerID = "../a" }, "containerID"},
	} {
		args := n.args("a")
		row.change(&args)
		if _, err := send(n.path("run/"+socketName), row.command, &args); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", row.reason, err)
		}
	}
	n.must(os.Remove(n.intentsFile())) // of the last row, whose DEL fails, too
	n.restart()
	n.agree(1)
}

// The delegate gets its own part of the configuration, and what the runtime adds.
func TestDelegateConfiguration(t *testing.T) {
	const ipam = `"ipam":{"type":"host-local","dataDir":"/d/"}`
	r, err := options{networks: []string{"one"}, dataDir: "/d"}.newRequest(skel.CmdArgs{StdinData: []byte(
		`{"cniVersion":"1.1.0","name":"one","type":"cniserver","runtimeConfig":{},"prevResult":{},"cni.dev/valid-attachments":[],` +
			`"delegate":{"type":"ptp",` + ipam + `}}`)})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"cni.dev/valid-attachments":[],"cniVersion":"1.1.0",` + ipam + `,"name":"one","prevResult":{},"runtimeConfig":{},"type":"ptp"}`
	if diff := cmp.Diff(want, string(r.StdinData)); diff != "" || r.Plugin != "ptp" {
		t.Errorf("delegate %s (-want +got):\n%s", r.Plugin, diff)
	}
	r, err = options{networks: []string{"one"}, dataDir: hostlocal.DefaultDataDir}.newRequest(skel.CmdArgs{StdinData: []byte(
		`{"name":"one","delegate":{"type":"ptp","ipam":{"type":"host-local"}}}`)})
	if err != nil {
		t.Errorf("the default data directory: %v, %v", r, err)
	}
}

// A GC detaches the recorded attachments that are not valid, and releases what is not recorded and
// not young, in its network and in no other. Without a list it does nothing.
//
// Guard: the networks in [server.gc], and its minimum ages.
func TestHazard74GCOfOneNetwork(t *testing.T) {
	n := newNode(t)
	n.restart("--gc-min-age", "0")
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
	if err := n.cni().GCNetworkList(t.Context(), one, nil); err == nil || !strings.Contains(err.Error(), "valid-attachments") {
		t.Errorf("a GC without a list (hazard 27): %v", err)
	}
	if !cnitest.Exists(leak) {
		t.Error("a GC without a list releases")
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
// time limit begins after the wait. If the plugin ends during it, the request is dropped.
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
	s.timeout = 1 // a nanosecond
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		if _, err := s.handle(t.Context(), command, n.args("a")); err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
			t.Errorf("%s with a time limit of 1ns: %v", command, err)
		}
	}
}

// If a plugin is killed during its ADD, the server completes the ADD. An ADD whose time limit
// ends is undone.
func TestADDWithoutItsPlugin(t *testing.T) {
	n := newNode(t)
	n.scripted()
	n.restart()
	n.Make("c")
	n.script("ADD block")
	cmd := exec.Command(filepath.Join(n.bin, "cniserver"))
	args := n.args("c")
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_IFNAME=eth0", "CNI_NETNS="+args.Netns, "CNI_PATH="+n.bin)
	cmd.Stdin = bytes.NewReader(bytes.Replace(args.StdinData, []byte("{"), fmt.Appendf(nil, `{"socket":%q,`, n.path("run/"+socketName)), 1))
	n.must(cmd.Start())
	n.arrived()
	n.must(cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	n.goOn()
	cnitest.Until(t, "the ADD has ended", func() bool {
		left, err := os.ReadFile(n.intentsFile())
		return err == nil && string(left) == "{}"
	})
	n.agree(2, "c")
	n.must(n.del(n.one(), "c"))
	n.kill()

	s := n.newServer()
	n.must(os.Remove(n.path("asked")))
	ctx, expire := context.WithCancel(t.Context())
	expire()
	r, err := s.newRequest(args)
	n.must(err)
	_, err = s.add(ctx, r)
	asked, read := os.ReadFile(n.path("asked"))
	if err == nil || read != nil || !strings.Contains(string(asked), "DEL") {
		t.Errorf("an ADD after its time limit: %v; the delegate was asked for %q", err, asked)
	}
	n.agree(2)
}

// The plugin passes errors on with their codes, and says that it is worth trying again if there is
// no answer.
func TestErrorsOfThePlugin(t *testing.T) {
	socket := filepath.Join("/run", "errors")
	for _, row := range []struct {
		reason, answer string // empty: the server does not answer
		code           uint
		want           string
	}{
		{"no server", "", types.ErrTryAgainLater, "is it running?"},
		{"a CNI error", `{"code":120,"msg":"full"}`, 120, "full"},
		{"no JSON", "no", types.ErrInternal, "400 Bad Request"},
		{"no code", "{}", types.ErrInternal, "400 Bad Request"},
	} {
		web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, row.answer)
		})}
		if row.answer != "" {
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = web.Serve(l) }() // until Close
		}
		_, err := send(socket, "ADD", new(skel.CmdArgs))
		var e *types.Error
		if !errors.As(err, &e) || e.Code != row.code || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v; want code %d and %q", row.reason, err, row.code, row.want)
		}
		if err := web.Close(); err != nil {
			t.Error(err)
		}
	}
}
