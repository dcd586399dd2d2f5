// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

var (
	simSeeds  = flag.Uint64("sim.seeds", 0, "how many seeds TestSimulator runs; 0: 500, with -short 60")
	simFirst  = flag.Int64("sim.first", -1, "the first of them; -1: one that no earlier commit ran")
	simShrink = flag.Bool("sim.shrink", true, "look for the shortest case of a failure")
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
	t.Run("fresh files", simulate)
	t.Run("settled files", inBubble(func(t *testing.T) {
		time.Sleep(100 * 365 * 24 * time.Hour) // the bubble's clock begins in 2000
		path, changed := filepath.Join(simDir(t), "file"), make(map[int64]bool)
		for range 9 {
			var st syscall.Stat_t
			if err := errors.Join(os.WriteFile(path, nil, 0o600), syscall.Stat(path, &st)); err != nil {
				t.Fatal(err)
			}
			changed[st.Ctim.Nano()] = true
		}
		if len(changed) < 9 {
			t.Log("NOT TESTED: this needs a kernel (6.13) and a file system that stamp each change with another time")
			return
		}
		simulate(t)
	}))
}

func simulate(t *testing.T) {
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

// simExplain returns the error of a seed, and the shortest case that it can find.
func simExplain(base string, seed uint64) string {
	config, script := simScript(seed)
	if *simShrink {
		script = shrink(base, config, script)
	}
	s := simRun(base, config, script)
	return fmt.Sprintf("%v\n%+v\nThe shortest case that was found, for a file in gc/testdata/cases:\n\n%s", s.broken, config, s.told.text())
}

// SimulatedCase returns the case of a seed that does not fail.
func SimulatedCase(t *testing.T, seed uint64) string {
	config, script := simScript(seed)
	s := simRun(simDir(t), config, script)
	must(t, s.broken)
	return s.told.text()
}

// A simCase tells a simulation as a case of testdata/cases: its passes, and what has changed whenever sources are asked. A case can't
// have all. What happens while a pass lists comes before it asks, and while it releases when it asks; all of a hook comes before it.
// An answer comes with the last one of its look. A pass that is cancelled has a source that fails. The agent reads the clock in passes
// alone. A date of a list has no reading of the monotonic clock, no pass is one of a loop's, and no node is suspended.
type simCase struct {
	lines      []string
	prefix     string                  // of the next ones: none, "asked: " or "again: "
	at, offset time.Duration           // of the simulation, when the last of them was told
	files      map[simAddress]*simFile // at that time
	said       map[simKind]podsource.Answer
	fails      bool     // a source does
	names      []string // of sandboxes, after their IDs
}

func (c *simCase) line(format string, args ...any) {
	c.lines = append(c.lines, c.prefix+fmt.Sprintf(format, args...))
}

func (c *simCase) text() string {
	return strings.NewReplacer(c.names...).Replace(strings.Join(c.lines, "\n") + "\n")
}

// boot boots the node, whose agent is started d later.
func (s *simulation) boot(d time.Duration) {
	up := map[bool]time.Duration{false: d}[s.config.noBoot]
	s.told.line("boot %v", up)
	s.told.at, s.now = s.told.at+up, s.now+d
}

// tellConfig tells what stays the same.
func (s *simulation) tellConfig() {
	o, memory, allow := s.config.opts, map[bool]string{true: " memory=yes"}, map[bool]string{true: " allow=default-"}
	s.told.line("options networks=podnet,second min-age=%v starting-for=%v request-timeout=%v%s%s", o.MinAge, o.StartingFor,
		o.RuntimeRequestTimeout, memory[s.config.memory], allow[s.config.allowForeign])
	more := map[simKind]string{fromKernel: "; netns2 adds none", fromIntents: "; plain2 speaks none; plain2 supplementary; plain2 adds *",
		fromRecord: "; record speaks " + strings.Join(simNetworks[:len(s.recordNetworks())], ",")}
	for _, k := range s.config.sources {
		s.told.line("%s%s%s", k, more[k], map[bool]string{true: fmt.Sprintf("; %s authoritative", k)}[s.config.allowEmpty])
	}
}

// tell tells what has changed on the node.
func (s *simulation) tell() {
	c := &s.told
	if s.now > c.at {
		c.line("wait %v", s.now-c.at)
	}
	if s.offset != c.offset {
		c.line("clock %v", s.offset-c.offset)
	}
	for a, f := range c.files {
		if s.files[a] != f {
			c.line("remove %s", s.name(a))
		}
	}
	for _, a := range s.known() {
		if f := s.files[a]; c.files[a] == f {
			continue
		} else if b, age := f.ownerOf(), s.wall().Sub(f.stamp); b != nil {
			c.line("reserve %s %s %v # %s", s.name(a), b.id, age, b.podName)
		} else {
			content, _ := os.ReadFile(s.path(a)) // else it is empty
			c.line("file %s %v %q", s.name(a), age, content)
		}
	}
	c.at, c.offset, c.files = s.now, s.offset, maps.Clone(s.files)
}

// tellAnswer tells what a source says, if that has changed.
func (s *simulation) tellAnswer(k simKind, a podsource.Answer) {
	s.tell()
	c, yes := &s.told, map[bool]string{true: "yes"}
	if !a.AsOf.IsZero() {
		c.line("%s written %v", k, s.reading().now.Sub(a.AsOf))
	}
	last, ok := c.said[k]
	if c.said[k] = a; ok && reflect.DeepEqual(a.Pods, last.Pods) && reflect.DeepEqual(a.Cache, last.Cache) {
		return
	}
	ago := func(at time.Time) string { // empty if it is unknown
		return map[bool]string{false: s.wall().Sub(at).String()}[at.IsZero()]
	}
	c.line("%s empty", k)
	for _, p := range a.Pods {
		keys := strings.Fields(fmt.Sprintf("name=%s uid=%s id=%s ip=%s network=%s more=%s host=%s started=%s %s", p.Name, p.UID,
			strings.Join(p.ContainerIDs, ","), strings.Trim(strings.ReplaceAll(fmt.Sprint(p.IPs), " ", ","), "[]"), p.Network,
			yes[p.MoreIPs], yes[p.HostNetwork], ago(p.StartedAt), map[bool]string{true: "finished="}[p.Finished]+ago(p.FinishedAt)))
		keys = slices.DeleteFunc(keys, func(key string) bool { return strings.HasSuffix(key, "=") && key != "finished=" })
		c.line("%s %s", k, strings.Join(keys, " "))
	}
	if a.Cache == nil {
		return
	}
	for _, network := range simNetworks {
		c.line("%s since %s %s", k, cmp.Or(ago(a.Cache.Since[network]), "-"), network)
	}
	for _, e := range a.Cache.Entries {
		if !slices.ContainsFunc(a.Pods, func(p podsource.Pod) bool { return p.Network == e.Network && p.ContainerIDs[0] == e.ContainerID }) {
			c.line("%s ended %s/%s", k, e.Network, e.ContainerID)
		}
	}
}

// tellPass tells which addresses the pass that has ended must keep, and in comments what it reports.
func (s *simulation) tellPass(o occasion, report *Report, err error) {
	c := &s.told
	if c.prefix != "" {
		s.tell()
	}
	if c.prefix = ""; c.fails != (err != nil) { // whatever the reason
		c.fails = err != nil
		c.line("%s %s", s.config.sources[0], map[bool]string{true: "fails", false: "answers"}[c.fails])
	}
	c.line("%s", cmp.Or(map[occasion]string{{hook: true}: "hook", {hook: true, noADD: true}: "hook no-add"}[o], "pass"))
	for _, e := range report.Reservations {
		c.line("  # %s/%s %s %s", e.Network, e.IP, e.Verdict, e.Reason)
	}
	keeps := "  keeps"
	for _, a := range s.known() {
		if f := s.files[a]; f == c.files[a] && f.owner != nil && f.owner.alive {
			keeps += " " + s.name(a)
		}
	}
	if c.line("%s", keeps); err != nil {
		c.line("  error # %.300s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
}
