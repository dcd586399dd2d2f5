// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A reservation is written whole and as the plugin writes it, or not at all, whatever others do after the draft was made.
func TestReserveAgain(t *testing.T) {
	for _, row := range []struct {
		reason, ip string
		meanwhile  func(nw *podNetwork, lock string, f *flags) error
		says       string // nothing: the file is as the plugin wrote it
	}{
		{"nobody comes", "10.1.0.2", nil, ""},
		{"IPv6", "fd00:1::2", nil, ""},
		{"the network's directory is removed", "10.1.0.2", func(_ *podNetwork, lock string, _ *flags) error {
			return os.RemoveAll(filepath.Dir(lock))
		}, "no such file"},
		{"an ADD takes the address", "10.1.0.2", func(nw *podNetwork, _ string, _ *flags) error {
			_, err := nw.ranges[0].Get(sandbox("late"), "eth0", net.ParseIP("10.1.0.2"))
			return err
		}, "an ADD has reserved it meanwhile"},
		{"a DEL of the container", "10.1.0.2", func(nw *podNetwork, _ string, _ *flags) error {
			return nw.ranges[0].Release(sandbox("web"), "eth0")
		}, "a DEL of its container came meanwhile"},
		{"another process holds the lock", "10.1.0.2", func(nw *podNetwork, _ string, f *flags) error {
			f.timeout = time.Nanosecond
			return nw.store.Lock()
		}, "another process holds"},
		{"the lock is a link", "10.1.0.2", func(_ *podNetwork, lock string, _ *flags) error {
			return errors.Join(os.Remove(lock), os.Symlink("/dev/null", lock))
		}, "taking the lock"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n := newNode(t)
			nw := n.network("podnet", "10.1.0.0/24", "fd00:1::/64")
			nw.add(sandbox("web"), 0)
			file := nw.file(row.ip)
			want := inFile(t, file)
			must(t, os.Remove(file))
			f := &flags{dataDir: filepath.Join(n.dir, "networks"), timeout: time.Minute}
			l := lost{netip.MustParseAddr(row.ip), "podnet", sandbox("web"), "eth0"}
			draft, err := f.draft(l)
			must(t, err)
			if got := inFile(t, draft); got != want || nw.there(row.ip) {
				t.Errorf("before the lock is taken the draft has %q, and the file is there: %v", got, nw.there(row.ip))
			}
			if row.meanwhile != nil {
				must(t, row.meanwhile(nw, nw.file("lock"), f))
			}
			before, _ := os.ReadFile(file)
			ctx, cancel := context.WithTimeout(t.Context(), f.timeout)
			defer cancel()
			err = f.reserve(ctx, l, draft)
			if row.says == "" {
				must(t, errors.Join(err, nw.store.Lock(), nw.store.Unlock())) // the lock is free again
				if got := inFile(t, file); got != want {
					t.Errorf("%q, and the plugin wrote %q", got, want)
				}
			} else if after, _ := os.ReadFile(file); err == nil || !strings.Contains(err.Error(), row.says) || string(before) != string(after) {
				t.Errorf("%v, want %q; before %q, after %q", err, row.says, before, after)
			}
		})
	}
}

// inFile returns the mode and the content of a file.
func inFile(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	text, err := os.ReadFile(path)
	must(t, err)
	return fmt.Sprintf("%v %s", info.Mode(), text)
}

// An endingRuntime reports its sandboxes as not ready once a draft was made.
type endingRuntime struct{ criRuntime }

func (r endingRuntime) now() criRuntime {
	if drafts, _ := filepath.Glob(dir + "podnet/.repair-*"); len(drafts) > 0 {
		r.ready, r.notReady = nil, r.ready
	}
	return r.criRuntime
}

func (r endingRuntime) ListPodSandbox(ctx context.Context, of *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return r.now().ListPodSandbox(ctx, of)
}

func (r endingRuntime) PodSandboxStatus(ctx context.Context, of *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	return r.now().PodSandboxStatus(ctx, of)
}

// On a node whose data directory was removed, the command writes what its plan shows, and only with --yes.
func TestRepair(t *testing.T) {
	if !onNode(t) {
		return
	}
	for _, row := range []struct {
		reason, args string
		change       func(b *bed)
		written      bool
		status       int
		says         string
	}{
		{"plan", "", nil, false, statusDone, "Nothing was written: --yes writes these files."},
		{"the network has another file", "", func(b *bed) { b.put(dir+"podnet/10.244.1.9", sandbox("x")+"\r\nlo") }, false, statusDone,
			"10.244.1.2  podnet"},
		{"all", "--yes", nil, true, statusDone, "Reserved 10.244.1.2 in network podnet again."},
		{"one address, and another that no pod has", "--yes --ip 10.244.1.2 --ip 10.244.1.3", nil, true, statusError,
			"10.244.1.3 can't be reserved again: the kernel shows it in 0"},
		{"others have addresses of another data directory, or of none", "--yes", func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", `, "ranges": [[{"subnet": "10.244.1.0/29"}]]`)
			b.conf("20-other.conflist", `"name": "other",`, "bridge", `, "dataDir": "/run/x", "ranges": [[{"subnet": "10.244.1.96/29"}]]`)
			b.space("", 98, 1)
			b.space("", 198, 1)
		}, true, statusDone, "Reserved 10.244.1.2"},
		{"libcni before 1.2", "--yes", func(b *bed) {
			b.cached("", `"interfaces": [{"name": "br"}, {"name": "lo", "sandbox": "/run/netns/web"}],`)
		}, true, statusDone, "Reserved"},
		{"another interface", "--yes", func(b *bed) { b.cached(`"netns": "/run/netns/web", "ifName": "eth0",`, "") }, false, statusError,
			"interface eth0 in /run/netns/web"},
		{"the directory is mounted elsewhere", "--yes --data-dir /run/networks", nil, false, statusDone, "Reserved"},
		{"it is another one", "--yes --data-dir /run/networks", func(b *bed) {
			b.conf("10-podnet.conflist", podnet, "bridge", subnet+`, "dataDir": "/run/x"`)
			b.cached(`"netns": "/run/netns/web",`, "")
			b.podnet()
		}, false, statusError, "the files of network podnet are in another data directory: --data-dir /run/x"},
		{"its sandbox ends while the draft is made", "--yes", func(b *bed) {
			must(b.t, os.MkdirAll("/run/containerd", 0o755))
			serveAt(b.t, "/run/containerd/containerd.sock", endingRuntime{b.runtime})
			b.serves = true
		}, false, statusError, "10.244.1.2 can't be reserved again: its container"},
		{"another pod has it by now", "--yes", func(b *bed) {
			b.put(dir+"podnet/10.244.1.2", sandbox("late")+"\r\nlo")
			b.space("", 0, 1)
		}, false, statusError, "10.244.1.2 can't be reserved again: it is reserved in network podnet, by "},
		{"a source gives no answer", "--yes --source file:/none", nil, false, statusError, "nothing was written"},
		{"no address", "--ip podnet", nil, false, statusUsage, "is no address"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			b := newBed(t)
			b.kernel()
			b.podnet()
			b.runtime.ready = []string{sandbox("0")}
			b.space("web", 0, 1)
			must(t, ns.WithNetNSPath("/run/netns/web", func(ns.NetNS) error { b.process(0); return nil }))
			b.cached(`"netns": "/run/netns/web",`, "")
			if row.change != nil {
				row.change(b)
			}
			b.args += " --source cnicache"
			if got := b.check(); row.args == "" && !strings.Contains(got.stdout,
				"hostlocal-gc repair --source=cri --source=netns:nested --source=cnicache\n") {
				t.Errorf("check: %s%s", got.stdout, got.stderr)
			}
			b.args += " " + row.args
			want, err := filepath.Glob(dir + "podnet/*")
			must(t, err)
			got := b.run("repair")
			if got.status != row.status || !strings.Contains(got.stdout+got.stderr, row.says) {
				t.Errorf("exit status %d, want %d with %q:\n%s%s", got.status, row.status, row.says, got.stdout, got.stderr)
			}
			if row.written {
				want = []string{dir + "podnet/10.244.1.2", dir + "podnet/lock"}
				if got := inFile(t, dir+"podnet/10.244.1.2"); got != "-rw------- "+sandbox("0")+"\r\nlo" {
					t.Errorf("the file has %q", got)
				}
				b.args = "--source cri --source netns:nested --source cnicache"
				if again := b.run("repair"); again.status != statusDone || again.stdout != "Each address of a live pod is reserved.\n" {
					t.Errorf("again: exit status %d: %s%s", again.status, again.stdout, again.stderr)
				}
			}
			left, _ := filepath.Glob(dir + "podnet/*")
			drafts, _ := filepath.Glob(dir + "podnet/.*")
			if diff := cmp.Diff(want, append(left, drafts...)); diff != "" {
				t.Errorf("in the network's directory (-want +got):\n%s", diff)
			}
		})
	}
}

// cached writes libcni's entry of a container that has 10.244.1.2 on lo, with these fields of it and of its result.
func (b *bed) cached(fields, ofResult string) {
	b.t.Helper()
	conf, err := os.ReadFile("/etc/cni/net.d/10-podnet.conflist")
	must(b.t, err)
	b.put("/var/lib/cni/results/podnet-"+sandbox("0")+"-lo", fmt.Sprintf(`{"kind": "cniCacheV1", "containerId": %q,
		"ifName": "lo", "networkName": "podnet", %s "config": %q,
		"result": {"cniVersion": "1.0.0", %s "ips": [{"address": "10.244.1.2/24"}]}}`,
		sandbox("0"), fields, base64.StdEncoding.EncodeToString(conf), ofResult))
}
