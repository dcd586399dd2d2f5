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
	lasts        bool // passes run for an hour; else there is one pass
	happens      func(s *simulation)
}{
	{"01, 02", "running, no address in its status yet", true, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.addSandbox(p)
		s.report(p, 2)
		s.now += 30 * time.Minute
	}},
	{"04", "ADD in flight for 4 minutes", false, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.report(p, 2)
		s.beginADD(p, p.nets, netip.Addr{}, false)
		s.now += 4 * time.Minute
	}},
	{"05", "sandbox not ready, addresses gone from the status", true, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.addSandbox(p)
		s.report(p, 0)
		p.statusIPs = nil
		s.now += 30 * time.Minute
	}},
	{"08", "dual stack, half of it in the status", true, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.addSandbox(p)
		s.report(p, 1)
		s.now += 30 * time.Minute
	}},
	{"10, 21", "recreated under its name, DEL lost", true, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.stop(s.addSandbox(p), delLost)
		s.addSandbox(p)
		s.report(p, 0)
		s.now += 30 * time.Minute
	}},
	{"12", "finished long ago, address still in its status, DEL lost", true, func(s *simulation) {
		s.addRunningPod()
		p := s.startPod(&simPod{})
		b := s.addSandbox(p)
		s.report(p, 0)
		p.finished, p.finishedAt = s.now, s.wall()
		s.report(p, 0)
		s.stop(b, delLost)
		s.now += 30 * time.Minute
	}},
	{"13", "finished a minute ago, sandbox still up", false, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.addSandbox(p)
		s.report(p, 0)
		s.now += time.Hour
		p.finished, p.finishedAt = s.now, s.wall()
		s.report(p, 0)
		s.now += time.Minute
	}},
	{"20", "rebooted, new sandboxes run", true, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.stop(s.addSandbox(p), delLost)
		s.now += time.Minute
		s.addSandbox(p)
		s.report(p, 0)
		s.now += 30 * time.Minute
	}},
	{"22", "second network, in no status", true, func(s *simulation) {
		p := s.startPod(&simPod{nets: []int{0, 1}})
		s.addSandbox(p)
		s.report(p, 0)
		s.now += 30 * time.Minute
	}},
	{"32", "stuck without an address, leaks older than it", true, func(s *simulation) {
		s.addRunningPod()
		gone := s.startPod(&simPod{})
		s.stop(s.addSandbox(gone), delLost)
		s.forget(gone)
		s.now += 2 * time.Hour
		s.report(s.startPod(&simPod{}), 2)
		s.now += 30 * time.Minute
	}},
	{"33", "deleted, and the runtime lost the record of what still runs", true, func(s *simulation) {
		p := s.startPod(&simPod{})
		b := s.addSandbox(p)
		s.report(p, 0)
		s.forget(p)
		b.listed, b.lost = false, true
		s.now += 30 * time.Minute
	}},
	{"35", "deleted by force, sandbox still up", true, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.addSandbox(p)
		s.report(p, 0)
		s.forget(p)
		s.now += 30 * time.Minute
	}},
	{"38", "starting again, the old sandbox still listed, an ADD of 6 minutes", false, func(s *simulation) {
		p := s.startPod(&simPod{})
		s.stop(s.addSandbox(p), delNotYet)
		s.report(p, 2)
		s.now += 30 * time.Minute
		s.beginADD(p, p.nets, netip.Addr{}, false)
		for range 6 {
			s.now += time.Minute
			_, _ = s.doPass(occasion{}, nil)
		}
	}},
	{"39", "each retry of a stuck pod leaks, the pool is full of them", true, func(s *simulation) {
		s.addRunningPod()
		p := s.startPod(&simPod{})
		s.report(p, 2)
		for range 12 {
			s.now += time.Minute
			s.stop(s.beginADD(p, p.nets, netip.Addr{}, false), delLost)
		}
	}},
	{"40", "rebooted, the pool full of reservations from before, all pods starting", true, func(s *simulation) {
		for range 12 {
			p := s.startPod(&simPod{})
			s.addSandbox(p)
			s.report(p, 0)
		}
		s.now += time.Hour
		s.reboot(3 << 8) // the sandboxes' records are gone, and kubelet knows
		s.now += time.Minute
		if err := s.restart(); err != nil {
			s.violate("restarting: %v", err)
		}
	}},
	{"49", "containers of nerdctl in the network, one lives and one leaked", true, func(s *simulation) {
		s.addRunningPod()
		s.finishADD(s.beginADD(nil, []int{0}, netip.Addr{}, false))
		b := s.beginADD(nil, []int{0}, netip.Addr{}, false)
		s.finishADD(b)
		s.stop(b, delLost)
		s.now += 30 * time.Minute
	}},
	{"59", "as 33, and its namespace shows no address (gVisor, VFIO)", true, func(s *simulation) {
		s.addRunningPod()
		p := s.startPod(&simPod{})
		b := s.addSandbox(p)
		b.invisible = true
		s.report(p, 0)
		s.forget(p)
		b.listed, b.lost = false, true
		s.now += 30 * time.Minute
	}},
	{"71", "ADD ended 6 minutes ago, not listed yet, its namespace shows no address", false, func(s *simulation) {
		s.addRunningPod()
		p := s.startPod(&simPod{})
		s.report(p, 2)
		s.beginADD(p, p.nets, netip.Addr{}, false)
		b := p.sandboxes[0]
		s.finishADD(b)
		b.invisible = true
		s.now += 6 * time.Minute
	}},
}

// addSandbox adds a sandbox to a pod, and finishes its ADD.
func (s *simulation) addSandbox(p *simPod) *simSandbox {
	b := s.beginADD(p, p.nets, netip.Addr{}, false)
	s.finishADD(b)
	b.listed = true
	return b
}

// addRunningPod adds a pod that runs and is reported.
func (s *simulation) addRunningPod() {
	p := s.startPod(&simPod{})
	s.addSandbox(p)
	s.report(p, 0)
}

// runCase runs a row's case with one set of sources, and returns the result.
func runCase(t *testing.T, row int, kinds []simKind) string {
	t.Helper()
	s, err := newSimulation(simDir(t), simConfig{sources: kinds}, func(string, ...any) {})
	must(t, err)
	defer s.close()
	r := &matrixRows[row]
	r.happens(s)
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
		return "**loses a live address**"
	case s.broken != nil:
		t.Errorf("%s, %v: %v", r.name, kinds, s.broken)
	case s.leaks():
		return "keeps the leak"
	case s.worst > time.Second:
		return fmt.Sprintf("holds after %d min", s.worst.Round(time.Minute)/time.Minute)
	}
	return "holds"
}

func (s *simulation) leaks() bool {
	for a, f := range s.files {
		if s.held[a] == nil && !(f.owner != nil && f.owner.listed) {
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
	for row, r := range matrixRows {
		table.WriteString("| " + r.hazard + " | " + r.name + " |")
		for _, c := range matrixColumns {
			table.WriteString(" " + runCase(t, row, c.kinds) + " |")
		}
		table.WriteString("\n")
	}
	t.Log("\n" + table.String())
	readme, err := os.ReadFile("../podsource/README.md")
	must(t, err)
	const begin, end = "<!-- computed by TestHazard33Matrix -->\n\n", "\n<!-- end -->"
	before, rest, ok1 := strings.Cut(string(readme), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("podsource/README.md has no comments around the matrix")
	}
	if old == table.String() {
		return
	}
	if !*update {
		t.Error("the matrix in podsource/README.md differs; look at the change, and write it with: go test ./gc -run Matrix -update")
		return
	}
	must(t, os.WriteFile("../podsource/README.md", []byte(before+begin+table.String()+end+after), 0o644))
}
