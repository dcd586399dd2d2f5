// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// An incident is an issue of another project, reproduced with that project's programs: see README.md. Its test shows
// the leak, that the programs alone do not recover, and that the node works again after one pass. It prints both
// results.

// alone and ours print the results without this project and with it.
func (n *node) alone(format string, args ...any) {
	n.t.Helper()
	n.t.Logf("without hostlocal-gc: "+format, args...)
}
func (n *node) ours(format string, args ...any) {
	n.t.Helper()
	n.t.Logf("with hostlocal-gc: "+format, args...)
}

// Errors of host-local.
const (
	noAddress = "no IP addresses available in range set"
	twice     = "duplicate allocation is not allowed"
)

// wantErr ends the test unless err says what it must.
func (n *node) wantErr(what, said string, err error) {
	n.t.Helper()
	if err == nil || !strings.Contains(err.Error(), said) {
		n.t.Fatalf("%s: %v, want an error that says %q", what, err, said)
	}
}

// wantFull checks that a pod fails for lack of an address.
func (n *node) wantFull(when string) {
	n.t.Helper()
	_, err := n.tryRun(n.t.Context(), "late")
	n.wantErr("a pod "+when, noAddress, err)
}

// wantFullForGood checks that no pod starts, that neither a restart of containerd nor libcni's GC changes that, and
// that the GC frees nothing.
func (n *node) wantFullForGood(why string, live ...pod) {
	n.t.Helper()
	n.wantFull("with the pool full of leaks")
	n.restart()
	n.wantFull("after a restart of containerd")
	same(n.t, "freed by libcni's GC", why, nil, n.collectGarbage(live...))
	if len(live) > 0 && !n.multus { // which has a cache of its own, and would free the addresses of live pods
		same(n.t, "freed by libcni's GC with nothing valid", "the cache has entries of live containers, so this GC works",
			verdicts("", addressesOf(live)...), verdicts("", n.collectGarbage()...))
	}
	n.alone("%d of %d addresses of both families have leaked, and no pod starts, also after a restart of containerd; libcni's GC frees none: %s",
		2*(n.pool-len(live)), 2*n.pool, why)
}

// collectGarbage calls libcni's GC as a runtime would, with these containers as the valid ones, and returns the
// addresses that it freed. It works on copies of the reservations and of the cache.
func (n *node) collectGarbage(valid ...pod) (freed []netip.Addr) {
	n.t.Helper()
	copied := n.t.TempDir()
	n.must(errors.Join(
		os.CopyFS(filepath.Join(copied, "networks"), os.DirFS(networks)),
		os.CopyFS(filepath.Join(copied, "results"), os.DirFS(cnicache.DefaultDir)),
	))
	entries, err := filepath.Glob(filepath.Join(copied, "results", "*"))
	n.must(err)
	for _, file := range entries {
		text, err := os.ReadFile(file)
		n.must(err)
		var entry map[string]any
		if json.Unmarshal(text, &entry) != nil {
			continue // libcni can't read it either
		}
		delete(entry, "netns") // so that a DEL does not remove the interfaces of live containers
		text, err = json.Marshal(entry)
		n.must(errors.Join(err, os.WriteFile(file, text, 0o600)))
	}
	files, err := libcni.ConfFiles(n.path("cni/conf"), []string{".conflist"})
	n.must(err)
	conf, err := os.ReadFile(files[0]) // containerd uses the first file, too
	n.must(err)
	list, err := libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(string(conf),
		`"ipam": {`, fmt.Sprintf(`"ipam": {"dataDir": %q,`, filepath.Join(copied, "networks")))))
	n.must(err)
	args := new(libcni.GCArgs)
	for _, p := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.id, IfName: "eth0"})
	}
	before := n.reservations()
	n.must(libcni.NewCNIConfigWithCacheDir([]string{n.path("cni/bin")}, copied, nil).GCNetworkList(n.t.Context(), list, args))
	for ip := range before {
		if _, err := os.Stat(filepath.Join(copied, "networks", n.network, ip.String())); errors.Is(err, os.ErrNotExist) {
			freed = append(freed, ip)
		}
	}
	same(n.t, "reservations", "libcni's GC worked on a copy", before, n.reservations())
	slices.SortFunc(freed, netip.Addr.Compare)
	return freed
}

// pass makes all reservations older than a minimum age of seconds, and runs one pass with the kernel, the cache and
// these sources.
func (n *node) pass(sources ...string) pass {
	n.t.Helper()
	n.makeOld(10 * time.Second)
	return n.only("release", append(sources, inSeconds...)...)
}

// wantHeld checks that live pods have their addresses, in host-local's files and in the runtime.
func (n *node) wantHeld(when string, live ...pod) {
	n.t.Helper()
	n.wantLeft(when, live...)
	for _, p := range live {
		ips, err := n.addresses(n.t.Context(), p.id)
		n.must(err)
		same(n.t, "addresses of "+p.name, when, p.ips, ips)
	}
}

// beforeBoot makes all reservations and entries older than the machine's boot, as after a reboot of it.
func (n *node) beforeBoot() {
	n.t.Helper()
	up, err := os.ReadFile("/proc/uptime")
	n.must(err)
	age, err := time.ParseDuration(strings.Fields(string(up))[0] + "s")
	n.must(err)
	n.makeOld(age + time.Hour)
}

// wantReleased checks what a pass released, and that it tells this cause of all that.
func (n *node) wantReleased(cause, reason string, want map[netip.Addr]string, p pass) {
	n.t.Helper()
	same(n.t, "released", reason+": "+p.String(), want, p.released)
	same(n.t, "causes", reason, verdicts(cause, slices.Collect(maps.Keys(want))...), p.causes)
}

// endOutage requires a pool in which live pods hold some addresses, and all others have leaked. It checks that it
// stays full, and that after one pass, which tells the cause, as many pods start as have leaked addresses, and live ones
// keep theirs. why is the reason why libcni's GC frees nothing.
func (n *node) endOutage(live []pod, cause, why string, sources ...string) {
	n.t.Helper()
	leaked := n.reservations()
	maps.DeleteFunc(leaked, func(_ netip.Addr, id string) bool {
		return slices.ContainsFunc(live, func(p pod) bool { return p.id == id })
	})
	for _, id := range otherContainers(leaked) {
		if state, ok := n.sandboxes()[id]; ok {
			n.t.Errorf("containerd still lists sandbox %s as %s", id, state)
		}
	}
	n.wantFullForGood(why, live...)
	p := n.pass(append(sources, n.runtime())...)
	n.wantReleased(cause, "no sandbox, process, namespace or entry has them", leaked, p)
	started := n.runSome("web", len(otherContainers(leaked)))
	n.wantHeld("on a pool that is full again", append(live, started...)...)
	n.ours("one pass releases %d of the %d, %d new pods start, and %d live pods keep their addresses", len(p.released), len(leaked), len(started), len(live))
}
