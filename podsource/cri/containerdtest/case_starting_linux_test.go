// SPDX-License-Identifier: Apache-2.0

package containerdtest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// A pod's ADD has got its addresses and has not returned. The runtime does not
// list the sandbox: nothing but the minimum age stands for it.
//
// Guard: [Source.Pods] declares the lag of a runtime.
func TestHazard04ADDInFlightOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live := n.run("live")
		starting := n.runHeld("starting")
		id := n.keptWhileStarting(live)
		n.goOn()
		n.runsAsReserved(n.wait(starting), id, live)
	})
}

// The addresses are there, and the image of the sandbox is on its way for
// minutes. containerd 1 pulls it before the ADD.
//
// Guard: [Source.Pods] declares the lag of a runtime.
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
		t.Fatalf("the image was to be pulled, and was not: %v", starting.err)
	}
	id := n.keptWhileStarting(live)
	registry.goOn()
	n.runsAsReserved(n.wait(starting), id, live)
}

// keptWhileStarting checks that a pass, and an agent that starts at this moment,
// keep the reservations of the pod that is starting, whose container ID it
// returns. All other reservations are those of live.
func (n *node) keptWhileStarting(live pod) (id string) {
	n.t.Helper()
	before := n.reservations(n.network)
	ids := strangers(before, live)
	if len(ids) != 1 {
		n.t.Fatalf("reservations %v, and besides %s one container was wanted", before, live.id)
	}
	ips := n.heldBy(n.network, ids[0])
	if _, listed := n.sandboxes()[ids[0]]; listed || len(ips) != 2 {
		n.t.Fatalf("%s holds %v, listed: %t; nothing can be learned from that", ids[0], ips, listed)
	}
	inUse := verdicts("in-use", live.ips...)
	n.must(stamp(n.network, time.Hour, ips...))
	same(n.t, "plan when they look old", "that is the danger: the runtime does not know the pod",
		joined(inUse, verdicts("leaked", ips...)), n.plan(n.network).verdicts)
	n.must(stamp(n.network, 2*time.Minute, ips...))
	same(n.t, "plan with a minimum age of a second", "what a runtime does not list yet counts as young for longer",
		joined(inUse, verdicts("young", ips...)), n.plan(n.network, "--min-age", "1s").verdicts)
	n.must(stamp(n.network, 0, ips...))

	same(n.t, "pass", "younger than the minimum age", joined(inUse, verdicts("young", ips...)), n.release(n.network).verdicts)
	same(n.t, "reservations", "after the pass", before, n.reservations(n.network))

	got := make(map[netip.Addr]string)
	for _, e := range n.hook(gc.Options{}).Reservations {
		got[e.IP] = string(e.Verdict)
	}
	same(n.t, "hook", "an agent that starts knows no more", joined(inUse, verdicts("young", ips...)), got)
	clear(got)
	for _, e := range n.hook(gc.Options{}, gc.NoADDInFlight).Reservations {
		got[e.IP] = string(e.Verdict)
	}
	same(n.t, "hook of an agent that asserts too much", "a runtime lists a container too late for it (hazard 73)",
		joined(inUse, verdicts("young", ips...)), got)
	same(n.t, "reservations", "after the hook", before, n.reservations(n.network))
	return ids[0]
}

// hook is what an agent does when it starts.
func (n *node) hook(opts gc.Options, assertions ...gc.Assertion) gc.Report {
	n.t.Helper()
	runtime, err := cri.New(n.endpoint(), cri.Options{})
	n.must(err)
	r, err := gc.New(hostlocal.New(""), []string{n.network}, runtime, opts)
	n.must(err)
	report, err := r.AtStartup(n.t.Context(), assertions...)
	if err != nil {
		n.t.Fatalf("the start-up hook: %v", err)
	}
	return report
}

// runsAsReserved checks that the pod has the addresses that were kept for it,
// and keeps them when it is old.
func (n *node) runsAsReserved(p pod, id string, live pod) {
	n.t.Helper()
	same(n.t, "container", "the one that was starting", id, p.id)
	n.age(n.network)
	n.release(n.network)
	same(n.t, "reservations", "both run, and are old", holding(live, p), n.reservations(n.network))
}
