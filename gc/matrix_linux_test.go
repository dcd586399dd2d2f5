// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// matrixColumns are the sets of sources with which each case runs.
var matrixColumns = []struct {
	name  string
	kinds []simKind
}{
	{"API server", []simKind{fromAPI}},
	{"kubelet", []simKind{fromKubelet}},
	{"runtime", []simKind{fromRuntime}},
	{"kernel", []simKind{fromProcesses}},
	{"cache", []simKind{fromCache}},
	{"own record", []simKind{fromRecord}},
	{"kubelet + runtime", []simKind{fromKubelet, fromRuntime}},
	{"kubelet + runtime + kernel", []simKind{fromKubelet, fromRuntime, fromProcesses}},
	{"kernel + cache", []simKind{fromProcesses, fromCache}},
	{"kubelet + runtime + kernel + cache", []simKind{fromKubelet, fromRuntime, fromProcesses, fromCache}},
}

// matrixRows are cases in which a source can go wrong. Here the simulation does not keep to
// A2 and A3: the matrix shows which sources break them.
var matrixRows = []struct {
	hazard, name string
	lasts        bool          // passes run for an hour; else there is one pass
	waits        time.Duration // before the first pass
	happens      func(s *simulation)
}{
	{"01, 02", "running, no address in its status yet", true, halfHour, func(s *simulation) { s.addRunningPod(2) }},
	{"04", "ADD in flight for 4 minutes", false, 4 * time.Minute, func(s *simulation) { s.beginPodsADD(s.addStartingPod()) }},
	{"05", "sandbox not ready, addresses gone from the status", true, halfHour, func(s *simulation) {
		p, _ := s.addRunningPod(0)
		p.statusIPs = nil
	}},
	{"08", "dual stack, half of it in the status", true, halfHour, func(s *simulation) { s.addRunningPod(1) }},
	{"10, 21", "recreated under its name, DEL lost", true, halfHour, func(s *simulation) { s.recreate(0) }},
	{"12", "finished long ago, address still in its status, DEL lost", true, halfHour, func(s *simulation) {
		s.addRunningPod(0)
		s.stop(s.finish(), delLost)
	}},
	{"13", "finished a minute ago, sandbox still up", false, time.Minute, func(s *simulation) { s.finish() }},
	{"20", "rebooted, new sandboxes run", true, halfHour, func(s *simulation) { s.recreate(time.Minute) }},
	{"22", "second network, in no status", true, halfHour, func(s *simulation) {
		p := s.startPod(&simPod{nets: []int{0, 1}})
		s.addSandbox(p)
		s.report(p, 0)
	}},
	{"32", "stuck without an address, leaks older than it", true, halfHour, func(s *simulation) {
		s.addRunningPod(0)
		gone := s.startPod(&simPod{})
		s.stop(s.addSandbox(gone), delLost)
		s.forget(gone)
		s.now += 2 * time.Hour
		s.addStartingPod()
	}},
	{"33", "deleted, and the runtime lost the record of what still runs", true, halfHour, func(s *simulation) { s.addLostSandbox() }},
	{"35", "deleted by force, sandbox still up", true, halfHour, func(s *simulation) {
		p, _ := s.addRunningPod(0)
		s.forget(p)
	}},
	{"38", "starting again, the old sandbox still listed, an ADD of 6 minutes", false, 0, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.stop(s.addSandbox(p), delNotYet)
		s.report(p, 2)
		s.now += halfHour
		s.beginPodsADD(p)
		for range 6 {
			s.now += time.Minute
			_, _ = s.doPass(occasion{}, nil)
		}
	}},
	{"39", "each retry of a stuck pod leaks, the pool is full of them", true, 0, func(s *simulation) {
		s.addRunningPod(0)
		p := s.addStartingPod()
		for range 12 {
			s.now += time.Minute
			s.stop(s.beginPodsADD(p), delLost)
		}
	}},
	{"40", "rebooted, the pool full of reservations from before, all pods starting", true, 0, func(s *simulation) {
		for range 12 {
			s.addRunningPod(0)
		}
		s.now += time.Hour
		s.reboot(3 << 8) // the sandboxes' records are gone, and kubelet knows
		s.now += time.Minute
		s.restart()
	}},
	{"49", "containers of nerdctl in the network, one lives and one leaked", true, halfHour, func(s *simulation) {
		s.addRunningPod(0)
		for _, end := range []func(*simSandbox){func(*simSandbox) {}, func(b *simSandbox) { s.stop(b, delLost) }} {
			b := s.beginADD(nil, []int{0}, netip.Addr{}, false)
			s.finishADD(b)
			end(b)
		}
	}},
	{"59", "as 33, and its namespace shows no address (gVisor, VFIO)", true, halfHour, func(s *simulation) {
		s.addRunningPod(0)
		s.addLostSandbox().invisible = true
	}},
	{"71", "ADD ended 6 minutes ago, not listed yet, its namespace shows no address", false, 6 * time.Minute, func(s *simulation) {
		s.addRunningPod(0)
		b := s.beginPodsADD(s.addStartingPod())
		s.finishADD(b)
		b.invisible = true
	}},
}

const halfHour = 30 * time.Minute

func (s *simulation) beginPodsADD(p *simPod) *simSandbox {
	return s.beginADD(p, p.nets, netip.Addr{}, false)
}

// addSandbox adds a sandbox to a pod, and finishes its ADD.
func (s *simulation) addSandbox(p *simPod) *simSandbox {
	b := s.beginPodsADD(p)
	s.finishADD(b)
	b.listed = true
	return b
}

// addStartingPod adds a pod that is reported, and has no sandbox.
func (s *simulation) addStartingPod() *simPod {
	p := s.startPod(&simPod{})
	s.report(p, 2)
	return p
}

// addRunningPod adds a pod that runs and is reported.
func (s *simulation) addRunningPod(part uint32) (*simPod, *simSandbox) {
	p := s.startPod(&simPod{})
	b := s.addSandbox(p)
	s.report(p, part)
	return p, b
}

// recreate adds a pod whose first sandbox ended without a DEL.
func (s *simulation) recreate(after time.Duration) {
	p := s.startPod(&simPod{})
	s.stop(s.addSandbox(p), delLost)
	s.now += after
	s.addSandbox(p)
	s.report(p, 0)
}

// finish adds a pod that finished now, and returns its sandbox.
func (s *simulation) finish() *simSandbox {
	p, b := s.addRunningPod(0)
	s.now += time.Hour
	p.finished, p.finishedAt = s.now, s.wall()
	s.report(p, 0)
	return b
}

// addLostSandbox adds a sandbox that runs, and that the runtime does not list any more.
func (s *simulation) addLostSandbox() *simSandbox {
	p, b := s.addRunningPod(0)
	s.forget(p)
	b.listed, b.lost = false, true
	return b
}

// runCase runs a row's case with one set of sources, and returns the result.
func runCase(t *testing.T, row int, kinds []simKind) string {
	t.Helper()
	s := newSimulation(simDir(t), simConfig{sources: kinds})
	defer s.close()
	r := &matrixRows[row]
	r.happens(s)
	s.now += r.waits
	begun, loop := s.now, simPauses{}
	for s.broken == nil && s.now-begun <= time.Hour {
		s.syncAPI()
		report, err := s.doPass(occasion{inLoop: true}, nil)
		if s.broken == nil && !s.leaks() && (s.worst == 0) {
			s.worst = max(s.now-begun, 1)
		}
		if !r.lasts {
			break
		}
		s.now += loop.after(s, &report, err)
	}
	switch {
	case s.broken != nil && strings.HasSuffix(s.broken.Error(), "was released"):
		return "**loses**"
	case s.broken != nil:
		t.Errorf("%s, %v: %v", r.name, kinds, s.broken)
	case s.leaks():
		return "keeps"
	case s.worst > time.Second:
		return fmt.Sprintf("%d min", s.worst.Round(time.Minute)/time.Minute)
	}
	return "holds"
}

func (s *simulation) leaks() bool {
	for a, f := range s.files {
		if s.holder(a) == nil && !(f.owner != nil && f.owner.listed) {
			return true
		}
	}
	return false
}

// TestHazard33Matrix computes which hazards remain with each set of sources, and compares
// the table with that in the README. With -update it writes the table.
func TestHazard33Matrix(t *testing.T) {
	var table strings.Builder
	table.WriteString("| hazard | the case |")
	for _, c := range matrixColumns {
		table.WriteString(" " + c.name + " |")
	}
	table.WriteString("\n|---|---|" + strings.Repeat("---|", len(matrixColumns)) + "\n")
	others, hold := "", strings.Repeat(" holds |", len(matrixColumns))
	for row, r := range matrixRows {
		cells := ""
		for _, c := range matrixColumns {
			cells += " " + runCase(t, row, c.kinds) + " |"
		}
		if cells == hold {
			others += ", " + r.hazard
			continue
		}
		table.WriteString("| " + r.hazard + " | " + r.name + " |" + cells + "\n")
	}
	table.WriteString("| " + strings.TrimPrefix(others, ", ") + " | each of these |" + hold + "\n")
	t.Log("\n" + table.String())
	readme, err := os.ReadFile("../podsource/README.md")
	must(t, err)
	const begin, end = "<!-- computed by TestHazard33Matrix -->\n\n", "\n<!-- end -->"
	before, rest, ok1 := strings.Cut(string(readme), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("podsource/README.md has no comments around the matrix")
	}
	switch {
	case old == table.String():
	case *update:
		must(t, os.WriteFile("../podsource/README.md", []byte(before+begin+table.String()+end+after), 0o644))
	default:
		t.Error("the matrix in podsource/README.md differs; look at the change, and write it with: go test ./gc -run Matrix -update")
	}
}
