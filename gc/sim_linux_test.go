// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	simSeeds  = flag.Uint64("sim.seeds", 0, "how many seeds TestSimulator runs; 0: 1,500, with -short 150")
	simFirst  = flag.Int64("sim.first", -1, "the first of them; -1: one that no earlier commit ran")
	simShrink = flag.Bool("sim.shrink", true, "look for the shortest trace of a failure")
)

// simRun runs a script of operations in a new simulation.
func simRun(base string, config simConfig, script []simOp, trace func(string, ...any)) (*simulation, error) {
	dir, err := os.MkdirTemp(base, "sim")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the test removes its own directory in the end
	s, err := newSimulation(dir, config, trace)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for _, op := range script {
		s.do(op)
		if s.check(); s.broken != nil {
			return s, s.broken
		}
	}
	s.endFaults()
	return s, s.broken
}

func simScript(seed uint64) (simConfig, []simOp) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	c := simConfig{sources: slices.Clone(oneOf(rnd, simSets...))}
	rnd.Shuffle(len(c.sources), func(i, j int) { c.sources[i], c.sources[j] = c.sources[j], c.sources[i] })
	c.opts = Options{
		RuntimeRequestTimeout: oneOf(rnd, 0, 0, 0, 30*time.Second, 5*time.Minute),
		MinAge:                oneOf(rnd, 0, 0, time.Second, 30*time.Second, 2*time.Minute, 16*time.Minute),
		StartingFor:           oneOf(rnd, 0, 0, 25*time.Minute),
		Interval:              oneOf(rnd, 0, 0, time.Minute, 5*time.Minute),
	}
	c.overlap, c.allowEmpty, c.asOf, c.stuck = rnd.IntN(4) == 0, rnd.IntN(3) == 0, rnd.IntN(2) == 0, rnd.IntN(2) == 0
	c.allowForeign, c.noBoot, c.recordAll = rnd.IntN(4) == 0, rnd.IntN(4) == 0, rnd.IntN(2) == 0
	c.memory, c.freeText = rnd.IntN(2) == 0, rnd.IntN(2) == 0
	c.hookOnly = c.memory && rnd.IntN(4) == 0
	return c, randomOps(rnd, 120, false)
}

// shrink looks for the shortest script that still fails. It leaves out parts of the script,
// halves first, and then operations inside passes.
func shrink(base string, config simConfig, script []simOp) []simOp {
	fails := func(s []simOp) bool {
		_, err := simRun(base, config, s, func(string, ...any) {})
		return err != nil
	}
	smaller := func(s []simOp, fails func([]simOp) bool) []simOp {
		for size := len(s); size >= 1; size /= 2 {
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

// firstSeed returns a seed that depends on the number of commits, so that each commit runs new
// seeds.
func firstSeed() uint64 {
	if *simFirst >= 0 {
		return uint64(*simFirst)
	}
	out, err := exec.Command("git", "rev-list", "--count", "HEAD").Output()
	if err != nil {
		return 0 // not a checkout
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(out)), 10, 32)
	if err != nil {
		return 0
	}
	return n * 1500
}

// TestSimulator runs simulations with the real Reconciler, one for each seed. After every step
// it checks that no live address was released and that no two sandboxes hold one. In the end it
// checks that every leak is released in time after the last fault.
func TestSimulator(t *testing.T) {
	log.SetOutput(io.Discard) // host-local's allocator logs
	defer log.SetOutput(os.Stderr)
	base, first, count := simDir(t), firstSeed(), orUsual(*simSeeds, 1500, 150)
	var next, seeds, steps, releases atomic.Uint64
	var worst time.Duration
	next.Store(first)
	failed := make(chan uint64, runtime.NumCPU())
	var mu sync.Mutex // guards worst
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				seed := next.Add(1) - 1
				if seed >= first+count || len(failed) > 0 {
					return
				}
				config, script := simScript(seed)
				s, err := simRun(base, config, script, func(string, ...any) {})
				seeds.Add(1)
				if err != nil {
					failed <- seed
					return
				}
				steps.Add(uint64(s.steps))
				releases.Add(uint64(s.releases))
				mu.Lock()
				worst = max(worst, s.worst)
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	violations := len(failed)
	fmt.Printf("Simulator: %d seeds run (first %d), %d steps, %d releases, %d violations, worst leak outlived the faults by %v\n",
		seeds.Load(), first, steps.Load(), releases.Load(), violations, worst)
	if violations > 0 {
		seed := <-failed
		config, script := simScript(seed)
		t.Errorf("seed %d, after %d seeds: %s", seed, seeds.Load(), simExplain(base, config, script))
	}
}

// simExplain returns the error of a script and the shortest trace that it can find.
func simExplain(base string, config simConfig, script []simOp) string {
	_, err := simRun(base, config, script, func(string, ...any) {})
	if *simShrink {
		script = shrink(base, config, script)
	}
	var trace strings.Builder
	_, shortest := simRun(base, config, script, func(format string, args ...any) { fmt.Fprintf(&trace, format+"\n", args...) })
	return fmt.Sprintf("%v\n%+v\nshortest trace found, of %d operations: %v\n%s", err, config, len(script), shortest, trace.String())
}
