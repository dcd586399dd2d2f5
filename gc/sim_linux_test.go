// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	simSeeds = flag.Uint64("sim.seeds", 1500, "how many seeds TestSimulator runs")
	simFirst = flag.Uint64("sim.first", 0, "the first of them")
	simShort = flag.Bool("sim.shrink", true, "look for the shortest trace of a failure")
)

// A simOp is one thing that happens in the world. Whom it happens to is picked
// by n among those it can happen to, so any part of a sequence of operations is
// one that can happen too. That is what makes a trace shrink.
type simOp struct {
	what  simWhat
	n     uint32
	inner []simOp // during a pass: one at each of the world's turns
}

type simWhat uint8

const (
	opPass simWhat = iota
	opTime
	opPod
	opHostPod
	opAdd
	opProceed
	opFailAdd
	opStatus
	opSync
	opNotReady
	opFinish
	opEvict
	opStop
	opDelete
	opForceDelete
	opRecreate
	opLateDel
	opClock
	opRestart
	opReboot
	opRemove
	opSourceFails
	opTakeOver
	ops
)

// How often each happens.
var opWeights = [ops]int{14, 16, 8, 1, 12, 14, 3, 10, 5, 3, 4, 1, 4, 5, 3, 3, 5, 3, 2, 1, 2, 2, 4}

func randomOps(rnd *rand.Rand, n int, nested bool) []simOp {
	total := 0
	for _, weight := range opWeights {
		total += weight
	}
	out := make([]simOp, n)
	for i := range out {
		at := rnd.IntN(total)
		for what, weight := range opWeights {
			if at -= weight; at < 0 {
				out[i].what = simWhat(what)
				break
			}
		}
		out[i].n = rnd.Uint32()
		if out[i].what == opPass {
			if nested {
				out[i].what = opProceed
			} else if rnd.IntN(3) > 0 {
				out[i].inner = randomOps(rnd, rnd.IntN(40), true)
			}
		}
	}
	return out
}

func pick[T any](from []T, n uint32, ok func(T) bool) (t T, found bool) {
	var can []T
	for _, x := range from {
		if ok(x) {
			can = append(can, x)
		}
	}
	if len(can) == 0 {
		return t, false
	}
	return can[int(n)%len(can)], true
}

var timeSteps = []time.Duration{time.Second, 10 * time.Second, 30 * time.Second, 2 * time.Minute, 3 * time.Minute, 6 * time.Minute, 20 * time.Minute, 3 * time.Hour}

// do lets one operation happen. With the plugin's lock held by somebody, what
// needs it waits for another time.
func (w *simWorld) do(op simOp, locked bool) {
	w.steps++
	if locked && slices.Contains([]simWhat{opAdd, opProceed, opFailAdd, opStop, opDelete, opLateDel, opFinish, opReboot, opTakeOver}, op.what) {
		return
	}
	n := op.n
	switch op.what {
	case opPass:
		w.doPass(op)
	case opTime:
		d := timeSteps[int(n)%len(timeSteps)]
		if locked {
			d = min(d, 10*time.Second) // nobody is late while the plugin waits
		}
		for d > 0 && w.broken == nil { // in small steps, or the deadlines are met too late
			step := min(d, 10*time.Second)
			w.now += step
			d -= step
			if !locked {
				w.deadlines()
			}
		}
	case opPod, opHostPod:
		if len(w.pods) < 8 {
			w.serial++
			p := &simPod{name: fmt.Sprintf("pod%d", w.serial), uid: fmt.Sprintf("uid%d", w.serial), startedAt: w.wall(),
				hostNetwork: op.what == opHostPod, second: n%4 == 0}
			w.pods = append(w.pods, p)
			w.trace("pod %s starts", p.uid)
		}
	case opAdd:
		p, ok := pick(w.pods, n, func(p *simPod) bool {
			return !p.hostNetwork && p.finished == 0 && !slices.ContainsFunc(p.boxes, func(b *simBox) bool { return b.alive || b.listed && w.byStatusOnly() })
		})
		if ok {
			w.begin(p, netip.Addr{})
		}
	case opProceed:
		if b, ok := pick(w.boxes, n, (*simBox).inFlight); ok {
			w.proceed(b)
		}
	case opFailAdd:
		if b, ok := pick(w.boxes, n, (*simBox).inFlight); ok {
			w.stop(b, delFate(n>>8%4))
		}
	case opStatus:
		if p, ok := pick(w.pods, n, func(*simPod) bool { return true }); ok {
			w.report(p, n>>8)
		}
	case opSync:
		w.syncAPI()
	case opNotReady: // the sandbox's process dies; its namespace and record stay, its addresses leave the status
		if b, ok := pick(w.boxes, n, func(b *simBox) bool { return b.alive && b.listed }); ok {
			b.pod.statusIPs = nil
			w.trace("%s is not ready", b.id)
		}
	case opFinish:
		p, ok := pick(w.pods, n, func(p *simPod) bool { return p.finished == 0 && len(p.boxes) > 0 })
		if ok {
			w.finish(p)
			for _, b := range slices.Clone(p.boxes) {
				if b.inFlight() {
					w.stop(b, delFate(n>>8%4))
				}
			}
		}
	case opEvict: // before it had anything; what has no containers is not reported
		w.pods = slices.DeleteFunc(w.pods, func(p *simPod) bool { return len(p.boxes) == 0 && !p.hostNetwork && n%2 == 0 })
	case opStop:
		if b, ok := pick(w.boxes, n, func(b *simBox) bool { return !b.inFlight() }); ok {
			w.stop(b, delFate(n>>8%4))
		}
	case opDelete, opRecreate:
		p, ok := pick(w.pods, n, func(*simPod) bool { return true })
		if !ok || locked {
			return
		}
		for _, b := range slices.Clone(p.boxes) {
			if b.alive || b.listed {
				w.stop(b, delFate(n>>8%4))
			}
		}
		w.forget(p)
		if op.what == opRecreate {
			w.serial++
			again := &simPod{name: p.name, uid: fmt.Sprintf("uid%d", w.serial), startedAt: w.wall(), second: p.second, hostNetwork: p.hostNetwork}
			w.pods = append(w.pods, again)
			w.trace("pod %s is recreated as %s", p.uid, again.uid)
			if !again.hostNetwork {
				w.begin(again, netip.Addr{})
			}
		}
	case opForceDelete: // gone from kubelet and the API, and its sandbox runs on
		if w.byStatusOnly() {
			return
		}
		p, ok := pick(w.pods, n, func(p *simPod) bool {
			return !slices.ContainsFunc(p.boxes, (*simBox).inFlight)
		})
		if ok {
			w.trace("pod %s is deleted by force", p.uid)
			w.forget(p)
		}
	case opLateDel:
		if len(w.pending) > 0 {
			i := int(n) % len(w.pending)
			w.del(w.pending[i])
			w.pending = slices.Delete(w.pending, i, i+1)
		}
	case opClock:
		step := []time.Duration{-time.Hour, -time.Minute, -time.Second, time.Second, time.Minute, time.Hour, 10 * 365 * 24 * time.Hour}[int(n)%7]
		if w.passing && w.now == w.lastStep && w.stepped {
			return // two steps between two readings, which might cancel each other out: A4
		}
		w.offset += step
		w.lastStep, w.stepped = w.now, true
		w.trace("the clock is set by %v", step)
		w.steppedSinceReading()
	case opRestart:
		if !w.passing && w.canRestart() {
			w.restart()
			w.trace("the agent restarts")
		}
	case opReboot:
		if w.passing || !w.canRestart() {
			return
		}
		w.trace("the node reboots")
		for _, b := range slices.Clone(w.boxes) {
			w.die(b)
			b.recorded = false
			if b.listed = b.listed && n%2 == 0; !b.listed {
				w.boxes = slices.DeleteFunc(w.boxes, func(o *simBox) bool { return o == b })
			}
			if n%3 == 0 && len(b.addrs) > 0 { // the last write is lost
				a := b.addrs[0]
				if w.onDisk(w.key(a.net, a.ip)) && w.held[a.ip] == nil && w.files[w.key(a.net, a.ip)] {
					_ = os.Truncate(filepath.Join(w.dir, w.key(a.net, a.ip)), 0)
					at := w.wall()
					_ = os.Chtimes(filepath.Join(w.dir, w.key(a.net, a.ip)), at, at)
				}
			}
		}
		w.pending = nil
		w.restart()
	case opRemove: // a person with rm, who knows what is leaked
		keys := make([]string, 0, len(w.files))
		for key := range w.files {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		key, ok := pick(keys, n, func(key string) bool {
			return !slices.ContainsFunc(w.boxes, func(b *simBox) bool {
				return b.alive && slices.ContainsFunc(b.addrs, func(a simAddr) bool { return w.key(a.net, a.ip) == key })
			})
		})
		if ok && w.onDisk(key) {
			_ = os.Remove(filepath.Join(w.dir, key))
			delete(w.files, key)
			w.trace("somebody removes %s", key)
		}
	case opSourceFails:
		w.fails = true
	case opTakeOver: // a DEL that was thought lost, and another container gets the address at once
		b, ok := pick(w.leaked, n, func(b *simBox) bool { return len(b.addrs) > 0 && b.addrs[0].net == 0 })
		if ok && len(w.pods) < 8 {
			w.leaked = slices.DeleteFunc(w.leaked, func(o *simBox) bool { return o == b })
			w.del(b)
			w.serial++
			p := &simPod{name: fmt.Sprintf("pod%d", w.serial), uid: fmt.Sprintf("uid%d", w.serial), startedAt: w.wall()}
			w.pods = append(w.pods, p)
			w.begin(p, b.addrs[0].ip)
		}
	}
	w.check()
}

// steppedSinceReading has the reconcilers read the clock: a step is seen, by A4,
// before the next one. They would see it at their next pass; here the next step
// may come first.
func (w *simWorld) steppedSinceReading() {
	for _, r := range w.cons {
		r.clock.observe(moment{w.wall(), w.now})
	}
}

func (w *simWorld) finish(p *simPod) {
	p.finished, p.finishedAt = w.now, w.wall()
	w.trace("pod %s finished", p.uid)
}

// forget takes a pod off kubelet's list, and off the API.
func (w *simWorld) forget(p *simPod) {
	w.pods = slices.DeleteFunc(w.pods, func(o *simPod) bool { return o == p })
	if !w.byStatusOnly() {
		w.syncAPI()
	}
}

// doPass does a pass during which the world goes on, wherever the pass looks at
// its context: before the lists, before and in the source's answer, before each
// owner is read, before each release.
func (w *simWorld) doPass(op simOp) {
	net := int(op.n) % len(w.nets)
	w.passing = true
	defer func() { w.passing = false }()
	ctx := &simContext{Context: context.Background(), w: w, inner: op.inner, lock: filepath.Join(w.dir, w.nets[net].name, "lock")}
	w.pass(net, ctx)
}

type simContext struct {
	context.Context
	w        *simWorld
	inner    []simOp
	lock     string
	answered bool // the source has
}

// Done is asked for once before the source is, and then before each wait for the
// lock: the first of these is the world's turn between decision and lock. How
// many more there are depends on the machine's speed, and traces must not.
func (c *simContext) Done() <-chan struct{} {
	if c.answered {
		c.answered = false
		for range 3 {
			_ = c.Err()
		}
	}
	return c.Context.Done()
}

func (c *simContext) Err() error {
	if len(c.inner) > 0 && c.w.broken == nil {
		op := c.inner[0]
		c.inner = c.inner[1:]
		c.w.do(op, isLocked(c.lock))
	}
	return nil
}

// simRun runs operations in a new world.
func simRun(base string, kinds []simKind, script []simOp, trace func(string, ...any)) (*simWorld, error) {
	dir, err := os.MkdirTemp(base, "sim")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the test's own folder goes in the end
	w, err := newSimWorld(dir, kinds, trace)
	if err != nil {
		return nil, err
	}
	defer w.close()
	for _, op := range script {
		if w.do(op, false); w.broken != nil {
			return w, w.broken
		}
	}
	w.settle()
	return w, w.broken
}

// simKinds are the sets of sources under which the promise must hold.
var simKinds = [][]simKind{
	{fromKubelet, fromRuntime},
	{fromAPI, fromRuntime},
	{fromKubelet, fromRuntime, fromKernel},
	{fromKubelet},
	{fromAPI},
	{fromRuntime},
	{fromRecord, fromRuntime},
	{fromKernel, fromKubelet},
}

func simScript(seed uint64) ([]simKind, []simOp) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	return simKinds[rnd.IntN(len(simKinds))], randomOps(rnd, 120, false)
}

// shrink looks for the shortest script that still fails: it leaves out parts,
// halves first, and then what happens inside passes.
func shrink(base string, kinds []simKind, script []simOp) []simOp {
	fails := func(s []simOp) bool {
		_, err := simRun(base, kinds, s, func(string, ...any) {})
		return err != nil
	}
	smaller := func(s []simOp, fails func([]simOp) bool) []simOp {
		for size := len(s) / 2; size >= 1; size /= 2 {
			for i := 0; i+size <= len(s); {
				if shorter := slices.Concat(s[:i], s[i+size:]); fails(shorter) {
					s = shorter
				} else {
					i += size
				}
			}
		}
		return s
	}
	for {
		before := len(script)
		script = smaller(script, fails)
		if len(script) == before {
			break
		}
	}
	for i := range script {
		if len(script[i].inner) == 0 {
			continue
		}
		script[i].inner = smaller(script[i].inner, func(inner []simOp) bool {
			s := slices.Clone(script)
			s[i].inner = inner
			return fails(s)
		})
	}
	return script
}

// TestSimulator runs worlds by their seeds, and the real reconciler in them.
// After every step it checks that no live address was released and none is held
// by two, and at the end of each world that no leak is left.
func TestSimulator(t *testing.T) {
	log.SetOutput(io.Discard) // host-local's allocator talks
	defer log.SetOutput(os.Stderr)
	base := t.TempDir()
	var next, seeds, steps, releases atomic.Uint64
	next.Store(*simFirst)
	failed := make(chan uint64, runtime.NumCPU())
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			for {
				seed := next.Add(1) - 1
				if seed >= *simFirst+*simSeeds || len(failed) > 0 {
					return
				}
				kinds, script := simScript(seed)
				w, err := simRun(base, kinds, script, func(string, ...any) {})
				seeds.Add(1)
				if err != nil {
					failed <- seed
					return
				}
				steps.Add(uint64(w.steps))
				releases.Add(uint64(w.releases))
			}
		})
	}
	wg.Wait()
	violations := len(failed)
	figures(t, fmt.Sprintf("Simulator: %d seeds run, %d steps, %d releases, %d violations", seeds.Load(), steps.Load(), releases.Load(), violations))
	if violations > 0 {
		seed := <-failed
		kinds, script := simScript(seed)
		_, err := simRun(base, kinds, script, func(string, ...any) {})
		if *simShort {
			script = shrink(base, kinds, script)
		}
		var trace strings.Builder
		_, shortest := simRun(base, kinds, script, func(format string, args ...any) { fmt.Fprintf(&trace, format+"\n", args...) })
		t.Errorf("seed %d (sources %v, after %d seeds): %v\nshortest trace found, of %d operations: %v\n%s", seed, kinds, seeds.Load(), err, len(script), shortest, trace.String())
	}
}
