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
	"testing"
	"time"
)

var (
	simSeeds  = flag.Uint64("sim.seeds", 0, "how many seeds TestSimulator runs; 0: 500, with -short 60")
	simFirst  = flag.Int64("sim.first", -1, "the first of them; -1: one that no earlier commit ran")
	simShrink = flag.Bool("sim.shrink", true, "look for the shortest way to a failure")
)

// simRun runs a script of operations in a new simulation.
func simRun(base string, config simConfig, script []simOp) *simulation {
	s := newSimulation(base, config)
	defer s.close()
	for i := 0; i < len(script) && s.broken == nil; i++ {
		s.do(script[i])
		s.check()
	}
	if s.broken == nil {
		s.endFaults()
	}
	return s
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

// shrink looks for the shortest script that still fails. It leaves out parts of the script, halves first, and then operations inside
// passes.
func shrink(base string, config simConfig, script []simOp) []simOp {
	smaller := func(part []simOp, whole func(part []simOp) []simOp) []simOp {
		for size := len(part); size >= 1; size /= 2 {
			for i := 0; i+size <= len(part); {
				shorter := slices.Concat(part[:i], part[i+size:])
				if simRun(base, config, whole(shorter)).broken != nil {
					part = shorter
				} else {
					i += size
				}
			}
		}
		return part
	}
	for before := -1; before != len(script); {
		before = len(script)
		script = smaller(script, func(all []simOp) []simOp { return all })
	}
	for i := range script {
		script[i].inner = smaller(script[i].inner, func(inner []simOp) []simOp {
			all := slices.Clone(script)
			all[i].inner = inner
			return all
		})
	}
	return script
}

// firstSeed returns a seed that depends on the number of commits, so that each commit runs new seeds. Without a checkout it is 0.
func firstSeed() uint64 {
	if *simFirst >= 0 {
		return uint64(*simFirst)
	}
	out, _ := exec.Command("git", "rev-list", "--count", "HEAD").Output()
	n, _ := strconv.ParseUint(string(bytes.TrimSpace(out)), 10, 32)
	return n * 1500
}

// TestSimulator runs simulations with the real Reconciler, one for each seed. After every step it checks that no live address was
// released and that no two sandboxes hold one. In the end it checks that every leak is released in time after the last fault.
func TestSimulator(t *testing.T) {
	log.SetOutput(io.Discard) // host-local's allocator logs
	defer log.SetOutput(os.Stderr)
	base, first, count := simDir(t), firstSeed(), orUsual(*simSeeds, 500, 60)
	var mu sync.Mutex // guards what follows
	var all simulation
	var ran int
	var failed []uint64
	var wg sync.WaitGroup
	workers := uint64(runtime.NumCPU())
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for seed, stop := first+w, false; seed < first+count && !stop; seed += workers {
				config, script := simScript(seed)
				s := simRun(base, config, script)
				mu.Lock()
				ran, all.steps, all.releases, all.worst = ran+1, all.steps+s.steps, all.releases+s.releases, max(all.worst, s.worst)
				if s.broken != nil {
					failed = append(failed, seed)
				}
				stop = failed != nil
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	fmt.Printf("Simulator: %d seeds run (first %d), %d steps, %d releases, %d violations, worst leak outlived the faults by %v\n",
		ran, first, all.steps, all.releases, len(failed), all.worst)
	if failed != nil {
		t.Errorf("seed %d: %s", failed[0], simExplain(base, failed[0]))
	}
}

// simExplain returns the error of a seed, and the shortest way to it that it can find.
func simExplain(base string, seed uint64) string {
	config, script := simScript(seed)
	if *simShrink {
		script = shrink(base, config, script)
	}
	s := simRun(base, config, script)
	return fmt.Sprintf("%v\n%+v\nThe shortest way to it that was found:\n\n%s", s.broken, config, strings.Join(s.told, "\n"))
}
