// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"net/netip"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// The ADD of a pod has its addresses and has not returned. The runtime does not list the
// sandbox, so only the minimum age keeps the reservations.
//
// Guard: [Source.Pods] declares RuntimeLag.
func TestHazard04ADDInFlightOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live := n.run("live")
		starting := n.runHeld("starting")
		id := n.keptWhileStarting(live)
		n.resume()
		n.runsAsReserved(n.wait(starting), id, live)
	})
}

// The addresses are reserved while the image of the sandbox is pulled, which may take minutes.
// containerd 1 pulls it before the ADD.
//
// Guard: [Source.Pods] declares RuntimeLag.
func TestHazard04PauseImagePulledSlowlyOnContainerd(t *testing.T) {
	n := newNode(t, current(), fromRegistry)
	registry := n.serveImage()
	live := n.run("live")
	n.removeImage()
	asked := registry.hold()
	starting := n.begin("starting")
	select {
	case <-asked:
	case <-starting.done:
		t.Fatalf("the image was not pulled: %v", starting.err)
	}
	id := n.keptWhileStarting(live)
	registry.resume()
	n.runsAsReserved(n.wait(starting), id, live)
}

// keptWhileStarting checks that a pass and the start-up hook keep the reservations of the
// starting pod, and returns its container ID. All other reservations must be those of live.
func (n *node) keptWhileStarting(live pod) (id string) {
	n.t.Helper()
	before := n.reservations(n.network)
	ids := otherContainers(before, live)
	if len(ids) != 1 {
		n.t.Fatalf("the reservations are %v, want one container besides %s", before, live.id)
	}
	ips := n.heldBy(n.network, ids[0])
	if _, listed := n.sandboxes()[ids[0]]; listed || len(ips) != 2 {
		n.t.Fatalf("%s holds %v, listed: %t, so the test shows nothing", ids[0], ips, listed)
	}
	inUse := verdicts("in-use", live.ips...)
	n.must(stamp(n.network, time.Hour, ips...))
	same(n.t, "plan with old reservations", "the hazard: the runtime does not list the pod",
		joined(inUse, verdicts("leaked", ips...)), n.plan(n.network).verdicts)
	n.must(stamp(n.network, 2*time.Minute, ips...))
	same(n.t, "plan with a minimum age of a second", "the lag of the runtime counts",
		joined(inUse, verdicts("young", ips...)), n.plan(n.network, "--min-age", "1s").verdicts)
	n.must(stamp(n.network, 0, ips...))

	same(n.t, "pass", "younger than the minimum age", joined(inUse, verdicts("young", ips...)), n.release(n.network).verdicts)
	same(n.t, "reservations", "after the pass", before, n.reservations(n.network))

	got := make(map[netip.Addr]string)
	for _, e := range n.hook(gc.Options{}).Reservations {
		got[e.IP] = string(e.Verdict)
	}
	same(n.t, "hook", "the start-up hook has the same answer", joined(inUse, verdicts("young", ips...)), got)
	clear(got)
	for _, e := range n.hook(gc.Options{}, gc.NoADDInFlight).Reservations {
		got[e.IP] = string(e.Verdict)
	}
	same(n.t, "hook with a false assertion", "a source with a lag waives nothing (hazard 73)",
		joined(inUse, verdicts("young", ips...)), got)
	same(n.t, "reservations", "after the hook", before, n.reservations(n.network))
	return ids[0]
}

// hook runs the start-up hook with the runtime as the source.
func (n *node) hook(opts gc.Options, assertions ...gc.Assertion) gc.Report {
	n.t.Helper()
	runtime, err := cri.New(n.endpoint(), cri.Options{Timeout: maxWait})
	n.must(err)
	r, err := gc.New(hostlocal.New(""), []string{n.network}, runtime, opts)
	n.must(err)
	report, err := r.AtStartup(n.t.Context(), assertions...)
	if err != nil {
		n.t.Fatalf("the start-up hook: %v", err)
	}
	return report
}

// runsAsReserved checks that the pod got its reserved addresses, and keeps them when the
// reservations are old.
func (n *node) runsAsReserved(p pod, id string, live pod) {
	n.t.Helper()
	same(n.t, "container", "the one that was starting", id, p.id)
	n.age(n.network)
	n.release(n.network)
	same(n.t, "reservations", "both pods run, with old reservations", holding(live, p), n.reservations(n.network))
}
