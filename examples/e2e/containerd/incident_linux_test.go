// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// incidentEnv is the variable with the file to which the test of an incident writes its row.
const incidentEnv = "CONTAINERDTEST_INCIDENT"

// An incident is an issue of another project, reproduced with that project's programs. Its test,
// TestIncident_name, is in the file incident_name_linux_test.go. It shows the leak, that the
// programs alone do not recover, and that the node works again after one pass. examples/incidents
// runs these tests and makes a table of them.
//
// The figures in the texts are counted by the test. They are the same in each run.
type incident struct {
	Issues   []string // as in "containerd/containerd#12130"; the first is the name of the row
	Leak     string   // the leak, and its cause
	Advice   string   // today's advice
	Alone    string   // the result without this project
	Ours     string   // the result of one pass
	Versions []string // of the programs
}

// report ends the test of an incident. It writes the row, unless the test has failed or was skipped.
func (i incident) report(t *testing.T) {
	t.Helper()
	need(t)
	if t.Failed() {
		return
	}
	row, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", row)
	if file := os.Getenv(incidentEnv); file != "" {
		if err := os.WriteFile(file, row, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// versions returns the versions of programs of the node, or of a module in one of them, as in
// "containerd:github.com/containernetworking/cni".
func (n *node) versions(programs ...string) (all []string) {
	n.t.Helper()
	for _, what := range programs {
		program, module, of := strings.Cut(what, ":")
		info, err := buildinfo.ReadFile(filepath.Join(os.Getenv(binEnv), program))
		n.must(err)
		if !of {
			m := info.Main
			if m.Replace != nil {
				m = *m.Replace
			}
			all = append(all, program+" "+m.Version)
			continue
		}
		i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == module })
		if i < 0 {
			n.t.Fatalf("%s was built without %s", program, module)
		}
		all = append(all, fmt.Sprintf("%s %s", program+"'s "+strings.TrimPrefix(module, "github.com/"), info.Deps[i].Version))
	}
	return all
}

// collectGarbage calls libcni's GC as a runtime would, with these containers as the valid ones, and
// returns the addresses that it freed. The GC works on copies of the reservations and of the cache,
// so the addresses stay reserved. If it frees none, it is called again with no valid containers, and
// must free the addresses of these, which shows that the GC works. This is not done with Multus,
// which does not use the copies, and would free the addresses of live pods.
func (n *node) collectGarbage(valid ...pod) (freed []netip.Addr) {
	n.t.Helper()
	freed = n.callGC(valid...)
	if len(freed) == 0 && len(valid) > 0 && !n.multus {
		same(n.t, "freed by libcni's GC with nothing valid", "the cache has entries of live containers, so this GC works",
			verdicts("", addressesOf(valid)...), verdicts("", n.callGC()...))
	}
	return freed
}

// callGC calls libcni's GC once.
func (n *node) callGC(valid ...pod) (freed []netip.Addr) {
	n.t.Helper()
	const data = "/var/lib/cni/networks"
	copied := n.t.TempDir()
	n.must(errors.Join(
		os.CopyFS(filepath.Join(copied, "networks"), os.DirFS(data)),
		os.CopyFS(filepath.Join(copied, "results"), os.DirFS(cnicache.DefaultDir)),
	))
	n.must(withoutNamespaces(filepath.Join(copied, "results")))
	files, err := libcni.ConfFiles(n.path("cni/conf"), []string{".conflist"})
	n.must(err)
	conf, err := os.ReadFile(files[0]) // containerd uses the first file, too
	n.must(err)
	before := n.reservations(n.network)
	list, err := libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(string(conf),
		`"ipam": {`, fmt.Sprintf(`"ipam": {"dataDir": %q,`, filepath.Join(copied, "networks")))))
	n.must(err)
	args := new(libcni.GCArgs)
	for _, p := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.id, IfName: "eth0"})
	}
	if err := libcni.NewCNIConfigWithCacheDir([]string{n.path("cni/bin")}, copied, nil).GCNetworkList(n.t.Context(), list, args); err != nil {
		n.t.Fatalf("libcni's GC, with %v as valid: %v", valid, err)
	}
	for ip := range before {
		if _, statErr := os.Stat(filepath.Join(copied, "networks", n.network, ip.String())); errors.Is(statErr, os.ErrNotExist) {
			freed = append(freed, ip)
		}
	}
	same(n.t, "reservations", "libcni's GC worked on a copy", before, n.reservations(n.network))
	slices.SortFunc(freed, netip.Addr.Compare)
	return freed
}

// withoutNamespaces removes the path of the network namespace from each entry of a cache, so that a
// DEL releases addresses, but does not remove interfaces of live containers.
func withoutNamespaces(cache string) error {
	entries, err := filepath.Glob(filepath.Join(cache, "*"))
	for _, file := range entries {
		text, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr)
		var entry map[string]any
		if json.Unmarshal(text, &entry) != nil {
			continue // libcni can't read it either
		}
		delete(entry, "netns")
		text, encodeErr := json.Marshal(entry)
		err = errors.Join(err, encodeErr, os.WriteFile(file, text, 0o600))
	}
	return err
}

// wantFull checks that a pod fails for lack of an address.
func (n *node) wantFull(when string) {
	n.t.Helper()
	const full = "no IP addresses available in range set"
	if p, err := n.tryRun(n.t.Context(), "late"); err == nil || !strings.Contains(err.Error(), full) {
		n.t.Fatalf("%s a pod must fail with %q, but RunPodSandbox returned %v, error: %v", when, full, p, err)
	}
}

// wantHeld checks that live pods have their addresses, in host-local's files and in the runtime.
func (n *node) wantHeld(when string, live ...pod) {
	n.t.Helper()
	reserved := n.reservations(n.network)
	for _, p := range live {
		ips, err := n.addresses(n.t.Context(), p.id)
		n.must(err)
		same(n.t, "addresses of "+p.name, when, p.ips, ips)
		for _, ip := range p.ips {
			same(n.t, "holder of "+ip.String(), when, p.id, reserved[ip])
		}
	}
}

// restart restarts containerd, usually the first thing that people try.
func (n *node) restart() {
	n.t.Helper()
	n.stop()
	n.start()
}

// pass makes all reservations and libcni's entries older than a minimum age of seconds, and runs one
// pass with the kernel, the cache and these sources.
func (n *node) pass(sources ...string) pass {
	n.t.Helper()
	n.makeSecondsOld()
	n.must(stampRecords(20 * time.Second)) // an entry is not younger than its reservation
	return n.bare("release", append(inSeconds(), sources...)...)
}

// An outage has the counts of a node whose pool was full of leaks.
type outage struct {
	leaked   int // addresses
	freed    int // of these, by libcni's GC
	released int // of these, by one pass
	started  int // pods, after that
}

// endOutage requires a pool in which live pods hold some addresses, and all others have leaked. It
// checks that no pod starts, that neither a restart of containerd nor libcni's GC changes that, and
// that after one pass as many pods start as have leaked addresses, and live ones keep theirs. why is
// the reason why the GC frees nothing.
func (n *node) endOutage(live []pod, why string, sources ...string) (o outage) {
	n.t.Helper()
	leaked := n.reservations(n.network)
	maps.DeleteFunc(leaked, func(_ netip.Addr, id string) bool {
		return slices.ContainsFunc(live, func(p pod) bool { return p.id == id })
	})
	listed := n.sandboxes()
	for _, id := range otherContainers(leaked) {
		if state, ok := listed[id]; ok {
			n.t.Errorf("containerd still lists sandbox %s as %s", id, state)
		}
	}
	n.wantFull("with the pool full of leaks")
	n.restart()
	n.wantFull("after a restart of containerd")
	freed := n.collectGarbage(live...)
	same(n.t, "freed by libcni's GC", why, nil, freed)

	p := n.pass(append(sources, "--source", "cri:"+n.endpoint())...)
	same(n.t, "released", "no sandbox, process, namespace or entry has them: "+p.String(), leaked, p.released)
	n.wantHeld("after the pass", live...)
	o = outage{leaked: len(leaked), freed: len(freed), released: len(p.released), started: len(otherContainers(leaked))}
	for i := range o.started {
		live = append(live, n.run(fmt.Sprint("web-", i)))
	}
	n.wantHeld("on a pool that is full again", live...)
	return o
}

// The passes of the incidents.
const (
	passWithRuntime    = "`hostlocal-gc release --min-age 3s` with the sources `cri`, `netns` and `cnicache`"
	passWithoutRuntime = "`hostlocal-gc release --min-age 3s` with the sources `netns` and `cnicache`"
)

// uptime returns the time since the boot of this machine, plus an hour.
func uptime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	var seconds float64
	if _, err := fmt.Sscan(string(text), &seconds); err != nil {
		return 0, fmt.Errorf("reading /proc/uptime: %w", err)
	}
	return time.Duration(seconds*float64(time.Second)) + time.Hour, nil
}

// debianVersion returns the major and minor version of Debian's containerd.
func (n *node) debianVersion() string {
	n.t.Helper()
	said := n.command(filepath.Join(n.bin, "containerd"), "--version")
	fields := strings.Fields(said)
	if len(fields) < 3 {
		n.t.Fatalf("containerd --version: %q", said)
	}
	parts := strings.SplitN(strings.TrimPrefix(fields[2], "v"), ".", 3)
	return "Debian's containerd " + strings.Join(parts[:min(2, len(parts))], ".")
}

// removeBridge removes the bridge, which has no ports, as an administrator must: see
// [bridgeWithoutMAC].
func (n *node) removeBridge() {
	n.t.Helper()
	n.must(removeBridges())
}

// bridgeWithoutMAC is the advice after an ADD failed with no other container on the bridge. Then
// the bridge has no MAC address, and no ADD succeeds.
const bridgeWithoutMAC = "The bridge has to be deleted, too (`ip link del cni0`): after a failed ADD on a bridge without other ports " +
	"the plugin `bridge` fails with `could not set bridge's mac`."
