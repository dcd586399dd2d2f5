// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package plugintest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// In minutes: StartingFor, before which a starting pod's claim does not end, and L, for which
// a reservation must have been seen unnamed before it ends. MinAge is the same as L.
const (
	startingFor = int(gc.DefaultStartingFor / time.Minute)
	lag         = int(gc.DefaultMinAge / time.Minute)
)

// Each retry of a pod fails after the plugin's ADD, and so does its DEL
// (containerd#12130), until the pool is full. The sources are kubelet and the runtime. The
// first pass after StartingFor releases a leak, if this process has seen it for L. Meanwhile
// an ADD takes longer than MinAge, and only its pod is known.
func TestHazard39PoolFullOfLeaks(t *testing.T) {
	const addTakes = 12 // minutes
	for _, row := range []struct {
		reason string
		starts int // the minute of the first pass
	}{
		{"the agent ran all the time: StartingFor decides", 0},
		{"the agent starts when the pool is full: L decides for the oldest", retries + 2},
	} {
		t.Run(row.reason, func(t *testing.T) {
			onSmallNode(t, func(t *testing.T, n *smallNode) {
				// Made before the first leak, also where its first pass comes later. The time since
				// boot is the machine's: had it just booted, all leaks of the bubble would be from
				// before the boot.
				r := reconcilerOf(t, n.p, unionOf(n.cri, n.kubelet), gc.Options{})
				var report gc.Report
				pass := func(minute int) {
					if minute < row.starts {
						return
					}
					var released, want []string
					report, released = n.pass(r)
					for made := 1; made <= retries; made++ {
						if minute == max(made+startingFor, row.starts+lag) {
							want = append(want, containerID(made))
						}
					}
					wantDiff(t, fmt.Sprintf("released in minute %d", minute), row.reason, want, released)
				}
				n.fill(pass)
				minute := retries + 2
				for ; minute < retries+1+addTakes; minute++ {
					n.until(minute)
					pass(minute)
				}
				e := of(t, report, slow)
				wantDiff(t, "ADD that takes longer than MinAge", "its pod is starting (R4)", gc.PodStarting, e.Reason)
				if age := time.Since(e.ReservedAt); age <= gc.DefaultMinAge {
					t.Errorf("the ADD is %v old, so the minimum age alone would keep its reservation", age)
				}
				n.adding, n.sandboxes = nil, append(n.sandboxes, slow)
				for ; minute <= retries+startingFor; minute++ {
					n.until(minute)
					pass(minute)
				}
				n.wantOwners("all leaks are gone, and nothing else", web, slow)
				n.add(app)
			})
		})
	}
}

// The same with sources that see ADDs in flight, and that name containers without a lag. The
// first pass of a new process releases all leaks that are older than MinAge. It asks the
// sources twice. The ADD in flight is older, too, and its reservation is kept.
func TestHazard39PoolFullOfLeaksWithADDsSeen(t *testing.T) {
	const fullAt = retries + 1 // the minute in which the pool is full
	for _, row := range []struct {
		reason  string
		sources func(n *smallNode) podsource.Source
		minAge  time.Duration
		at      int // the minute of the pass
		want    []string
		adding  gc.Reason
	}{
		{
			reason:  "the record names the containers whose ADD has ended, and netns the one whose ADD is in flight (R4)",
			sources: func(n *smallNode) podsource.Source { return unionOf(n.netns, n.record, n.kubelet) },
			at:      fullAt + lag, want: leaked(), adding: gc.ContainerLive,
		}, {
			reason:  "a minute earlier the last leak is too young, although R4's claim has ended",
			sources: func(n *smallNode) podsource.Source { return unionOf(n.netns, n.record, n.kubelet) },
			at:      retries + lag - 1, want: leaked()[:retries-1], adding: gc.ContainerLive,
		}, {
			reason:  "the first look is between two plugins and sees no process: the second sees it (R5)",
			sources: func(n *smallNode) podsource.Source { return unionOf(n.netnsBetween(1), n.record, n.kubelet) },
			at:      fullAt + lag, want: leaked(), adding: gc.ContainerLive,
		}, {
			reason:  "the second look is between two plugins and sees no process: the first has seen it (R5)",
			sources: func(n *smallNode) podsource.Source { return unionOf(n.netnsBetween(2), n.record, n.kubelet) },
			at:      fullAt + lag, want: leaked(), adding: gc.ContainerLive,
		}, {
			reason:  "a cache that is this node's lets a MinAge of seconds count (R5)",
			sources: func(n *smallNode) podsource.Source { return unionOf(n.netns, n.cache, n.kubelet) },
			minAge:  5 * time.Second,
			at:      fullAt, want: leaked(), adding: gc.ContainerLive,
		}, {
			reason:  "without a cache a MinAge of seconds does not count (R5)",
			sources: func(n *smallNode) podsource.Source { return unionOf(n.netns, n.record, n.kubelet) },
			minAge:  5 * time.Second,
			at:      fullAt, want: leaked()[:retries+1-lag], adding: gc.ContainerLive,
		}, {
			reason:  "no source sees ADDs in flight, so a leak may be the starting pod's ADD (R4)",
			sources: func(n *smallNode) podsource.Source { return unionOf(n.record, n.kubelet) },
			at:      fullAt + lag, adding: gc.PodStarting,
		}, {
			reason:  "in the second look the processes can't be read (R5)",
			sources: func(n *smallNode) podsource.Source { return unionOf(n.netnsOnce, n.record, n.kubelet) },
			at:      fullAt + lag, adding: gc.ContainerLive,
		}, {
			reason:  "the runtime lists sandboxes minutes late, so a leak may be that of one (R4)",
			sources: func(n *smallNode) podsource.Source { return unionOf(n.netns, n.cri, n.kubelet) },
			at:      fullAt + lag, adding: gc.ContainerLive,
		},
	} {
		t.Run(row.reason, func(t *testing.T) {
			onSmallNode(t, func(t *testing.T, n *smallNode) {
				n.fill(func(int) {})
				n.until(row.at)
				report, released := n.pass(reconcilerOf(t, n.p, row.sources(n), gc.Options{MinAge: row.minAge}))
				wantDiff(t, "released", row.reason, row.want, released)
				wantDiff(t, "ADD in flight", row.reason, row.adding, of(t, report, slow).Reason)
				if row.want == nil {
					n.wantFull("nothing was released")
					return
				}
				wantDiff(t, "looks", "it takes two to release these (R5)", 2, report.Looks)
				n.add(app)
			})
		})
	}
}

// With kubelet or the API server as the only source, a leak looks like an ADD of the pod
// that is starting. A reservation made since its start, in this boot, is kept while the pod
// is starting, and the report says why.
func TestHazard39PoolFullOfLeaksWithKubeletAlone(t *testing.T) {
	onSmallNode(t, func(t *testing.T, n *smallNode) {
		r := reconcilerOf(t, n.p, unionOf(n.kubelet), gc.Options{})
		pass := func(minute int) {
			report, released := n.pass(r)
			wantDiff(t, fmt.Sprintf("released in minute %d", minute), "the starting pod may hold it (R4)", []string(nil), released)
			for made := 1; made <= retries && minute > made+lag; made++ {
				e := of(t, report, containerID(made))
				if e.Reason != gc.StartingNoEnd || e.Pod == nil || e.Pod.Name != "app" {
					t.Errorf("a leak of minute %d in minute %d: %s (%s) of pod %v, want StartingNoEnd of pod app",
						made, minute, e.Verdict, e.Reason, e.Pod)
				}
			}
		}
		n.fill(pass)
		for minute := retries + 2; minute < 24*60; minute += 30 {
			n.until(minute)
			pass(minute)
		}
		n.wantFull("all leaks are kept")
	})
}

// The node has booted. All its pods are starting again, the sandboxes and network namespaces
// from before are gone, and the pool is full of their reservations.
func TestHazard40PoolFullAfterReboot(t *testing.T) {
	runtimeToo := func(n *smallNode) podsource.Source { return unionOf(n.cri, n.kubelet) }
	kubeletAlone := func(n *smallNode) podsource.Source { return unionOf(n.kubelet) }
	kernelToo := func(n *smallNode) podsource.Source { return unionOf(n.netns, n.cache, n.kubelet) }
	for _, row := range []struct {
		reason  string
		sources func(n *smallNode) podsource.Source
		known   bool // the pods' starts, which are from before the reboot
		hook    bool // the hook releases the leaks; else the first pass that has seen them for L does
	}{
		{"a host-network sandbox is listed: with the runtime; known starts", runtimeToo, true, false},
		{"a host-network sandbox is listed: with the runtime; unknown starts", runtimeToo, false, false},
		{"with kubelet alone; known starts", kubeletAlone, true, false},
		{"with kubelet alone; unknown starts", kubeletAlone, false, false},
		{"stale entries show that the cache is this node's, and no ADD is in flight; known starts", kernelToo, true, true},
		{"stale entries show that the cache is this node's, and no ADD is in flight; unknown starts", kernelToo, false, true},
	} {
		t.Run(row.reason, func(t *testing.T) {
			onSmallNode(t, func(t *testing.T, n *smallNode) {
				// The time since boot is that of the machine even in a bubble, and no machine
				// has been up for ten years.
				const day = 24 * time.Hour
				for i := range poolSize {
					pod := podsource.Pod{}
					if row.known {
						pod.StartedAt = time.Now().Add(-4000 * day)
					}
					n.pods[fmt.Sprintf("pod-%d", i)] = pod
					old := containerID(1 + i)
					age(t, n.p, 3650*day, n.add(old).IPs...)
					n.stale = append(n.stale, old)
				}
				n.wantFull("no pod can start")

				r := reconcilerOf(t, n.p, row.sources(n), gc.Options{})
				first, err := r.AtStartup(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				released := releasedBy(first)
				for minute := 0; !row.hook && minute <= lag; minute++ {
					wantDiff(t, fmt.Sprintf("released before minute %d", minute), "not yet seen for L (R4)", []string(nil), released)
					n.until(minute)
					_, released = n.pass(r)
				}
				wantDiff(t, "released in the end", row.reason, n.stale, released)
				for i := range poolSize {
					n.add(containerID(200 + i))
				}
			})
		})
	}
}
