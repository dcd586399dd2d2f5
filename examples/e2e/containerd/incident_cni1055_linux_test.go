// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The power fails before the disk has libcni's entries: their files exist, and are empty. With libcni
// before 1.2 every DEL then fails, for ever.
func TestIncident_cni1055(t *testing.T) {
	const size = 4
	const said = "unexpected end of JSON input"
	needDebian(t)
	var row incident
	t.Run("containerd 1.6", func(t *testing.T) {
		n := newNode(t, debian(), func(n *node) { n.pool = size })
		n.runAgent()
		old := n.loseEntries(n.runSome("web", size))
		failed := 0
		for range 2 { // kubelet repeats it for ever
			for _, p := range old {
				if err := n.tryStop(t.Context(), p.id); err == nil || !strings.Contains(err.Error(), said) {
					t.Fatalf("stopping %s must fail with %q: %v", p.name, said, err)
				}
				failed++
			}
		}
		same(t, "reservations", "no DEL called host-local", holding(old...), n.reservations(n.network))
		n.wantFull("with sandboxes that can't be stopped")
		n.restart()
		n.wantFull("after a restart of containerd")
		freed := n.collectGarbage()
		same(t, "freed by libcni's GC", "it skips entries that it can't read", nil, freed)

		n.removeBridge()
		n.must(n.beforeBoot())
		asked := n.plan(n.network, inSeconds()...)
		same(t, "plan with the runtime", "it lists the sandboxes", verdicts("in-use", addressesOf(old)...), asked.verdicts)
		p := n.bare("release", inSeconds()...)
		same(t, "addresses released", "their namespaces are gone", holding(old...), p.released)
		live := n.runSome("new", size)
		n.wantHeld("after the pass", live...)
		again := n.bare("release", inSeconds()...)
		same(t, "released by the next pass", "live pods have them", nil, again.released)
		n.wantHeld("after the next pass", live...)
		row = incident{
			Issues: []string{"containernetworking/cni#1055", "k3s-io/k3s#6185", "containerd/containerd#8197"},
			Leak: "The power fails before the disk has libcni's cache. Its files are there and empty, and with libcni before 1.2 every DEL " +
				"of their containers fails.",
			Advice: "Remove the sandboxes with `ctr`, and by hand the empty files below `/var/lib/cni` (k3s#6185), or empty libcni's cache at each boot " +
				"(amazon-eks-ami#1912), or upgrade to libcni 1.2.",
			Alone: fmt.Sprintf("containerd 1.6: %d of %d stops fail (`%s`), the pool of %d stays full, also after a restart. libcni's GC frees %d.",
				failed, failed, said, size, len(freed)),
			Ours: fmt.Sprintf("%s: %d of %d leaked addresses released, %d pods start. **Not with the runtime as a source**: what it lists is kept (R3), "+
				"and it lists these sandboxes for ever. %s", passWithoutRuntime, len(p.released), 2*size, size, bridgeWithoutMAC),
			Versions: []string{n.debianVersion()},
		}
	})
	t.Run("containerd 2", func(t *testing.T) {
		n := newNode(t, current(), func(n *node) { n.pool = size })
		n.runAgent()
		for _, p := range n.loseEntries(n.runSome("web", size)) {
			n.remove(p.id)
		}
		same(t, "reservations", "libcni 1.2 does the DEL without the entry", nil, n.reservations(n.network))
		row.Alone += " containerd 2 stops them, as libcni 1.2 does without the entry."
		row.Versions = append(row.Versions, n.versions("containerd", "containerd:github.com/containernetworking/cni", "host-local")...)
	})
	row.report(t)
}

// loseEntries makes the power fail before the disk has the entries of these pods.
func (n *node) loseEntries(pods []pod) []pod {
	n.t.Helper()
	n.reboot(false)
	for _, p := range pods {
		_, file := n.cachedOf(p)
		n.must(os.Truncate(file, 0))
	}
	n.start()
	return pods
}

// beforeBoot makes reservations and entries older than the boot of this machine, as after a power
// loss of the machine.
func (n *node) beforeBoot() error {
	up, err := uptime()
	if err != nil {
		return err
	}
	var errs []error
	for ip := range n.reservations(n.network) {
		errs = append(errs, stamp(n.network, up, ip))
	}
	return errors.Join(append(errs, stampRecords(up))...)
}
