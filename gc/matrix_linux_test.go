// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

var update = flag.Bool("update", false, "write the matrix of sources into the README")

// matrixColumns are the sets of sources through which each world is seen.
var matrixColumns = []struct {
	name  string
	kinds []simKind
}{
	{"API server", []simKind{fromAPI}},
	{"kubelet", []simKind{fromKubelet}},
	{"runtime", []simKind{fromRuntime}},
	{"kernel", []simKind{fromKernel}},
	{"own record", []simKind{fromRecord}},
	{"kubelet + runtime", []simKind{fromKubelet, fromRuntime}},
	{"kubelet + runtime + kernel", []simKind{fromKubelet, fromRuntime, fromKernel}},
}

// matrixRows are worlds in which a source can go wrong. Here the world does not
// keep to what A2 and A3 ask of a source: the matrix shows who breaks them.
var matrixRows = []struct {
	hazard, name string
	alone        bool // the second network is not told of the first
	now          bool // the pass comes at once, and not half an hour later
	happens      func(w *simWorld)
}{
	{"01, 02", "running, no address in its status yet", false, false, func(w *simWorld) {
		p := w.addPod()
		w.addBox(p)
		w.report(p, 2)
	}},
	{"04", "ADD in flight for 4 minutes", false, true, func(w *simWorld) {
		p := w.addPod()
		w.report(p, 2)
		w.begin(p, netip.Addr{})
		w.now += 4 * time.Minute
	}},
	{"05", "sandbox not ready, addresses gone from the status", false, false, func(w *simWorld) {
		p := w.addPod()
		w.addBox(p)
		w.report(p, 0)
		p.statusIPs = nil
	}},
	{"08", "dual stack, half of it in the status", false, false, func(w *simWorld) {
		p := w.addPod()
		w.addBox(p)
		w.report(p, 1)
	}},
	{"10, 21", "recreated under its name, DEL lost", false, false, func(w *simWorld) {
		p := w.addPod()
		w.stop(w.addBox(p), delLost)
		w.addBox(p)
		w.report(p, 0)
	}},
	{"12", "finished long ago, address still in its status, DEL lost", false, false, func(w *simWorld) {
		p := w.addPod()
		b := w.addBox(p)
		w.report(p, 0)
		w.finish(p)
		w.report(p, 0)
		w.stop(b, delLost)
	}},
	{"13", "finished a minute ago, sandbox still up", false, true, func(w *simWorld) {
		p := w.addPod()
		w.addBox(p)
		w.report(p, 0)
		w.now += time.Hour
		w.finish(p)
		w.report(p, 0)
		w.now += time.Minute
	}},
	{"20", "rebooted, new sandboxes run", false, false, func(w *simWorld) {
		p := w.addPod()
		w.stop(w.addBox(p), delLost)
		w.now += time.Minute
		w.addBox(p)
		w.report(p, 0)
	}},
	{"22", "second network, told of the first", false, false, func(w *simWorld) {
		p := w.addPod()
		p.second = true
		w.addBox(p)
		w.report(p, 0)
	}},
	{"22", "second network, not told of the first", true, false, func(w *simWorld) {
		p := w.addPod()
		p.second = true
		w.addBox(p)
		w.report(p, 0)
	}},
	{"32", "stuck without an address, leaks older than it", false, false, func(w *simWorld) {
		gone := w.addPod()
		w.stop(w.addBox(gone), delLost)
		w.forget(gone)
		w.now += 2 * time.Hour
		w.report(w.addPod(), 2)
	}},
	{"33", "deleted, and the runtime lost the record of what still runs", false, false, func(w *simWorld) {
		p := w.addPod()
		b := w.addBox(p)
		w.report(p, 0)
		w.forget(p)
		b.listed, b.recorded = false, false
	}},
	{"35", "deleted by force, sandbox still up", false, false, func(w *simWorld) {
		p := w.addPod()
		w.addBox(p)
		w.report(p, 0)
		w.forget(p)
	}},
}

func (w *simWorld) addPod() *simPod {
	p := &simPod{name: "p", uid: "p" + time.Duration(w.serial).String(), startedAt: w.wall()}
	w.serial++
	w.pods = append(w.pods, p)
	return p
}

// addBox gives a pod a sandbox, its ADD done.
func (w *simWorld) addBox(p *simPod) *simBox {
	w.begin(p, netip.Addr{})
	b := p.boxes[len(p.boxes)-1]
	for b.inFlight() {
		w.proceed(b)
	}
	return b
}

// see runs a row's world under one set of sources and says what comes of it.
func see(t *testing.T, row int, kinds []simKind) string {
	t.Helper()
	w, err := newSimWorld(t.TempDir(), kinds, func(string, ...any) {})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if matrixRows[row].alone {
		for i := range w.cons {
			w.cons[i].opts.Siblings = nil
		}
	}
	matrixRows[row].happens(w)
	if !matrixRows[row].now {
		w.now += 30 * time.Minute
	}
	w.syncAPI()
	for net := range w.nets {
		w.pass(net, context.Background())
	}
	if w.broken != nil {
		return "**loses a live address**"
	}
	for key := range w.files {
		if !slices.ContainsFunc(w.boxes, func(b *simBox) bool {
			return b.alive && slices.ContainsFunc(b.addrs, func(a simAddr) bool { return w.key(a.net, a.ip) == key })
		}) {
			return "keeps the leak"
		}
	}
	return "holds"
}

// TestHazard33Matrix computes which hazards each kind of source leaves open,
// and fails when the README says otherwise. With -update it writes the table.
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
			table.WriteString(" " + see(t, row, c.kinds) + " |")
		}
		table.WriteString("\n")
	}
	t.Log("\n" + table.String())
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- computed by TestHazard33Matrix -->\n\n", "\n<!-- end -->"
	before, rest, ok1 := strings.Cut(string(readme), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("the README has no place for the matrix")
	}
	if old == table.String() {
		return
	}
	if !*update {
		t.Error("the README's matrix differs; look at the change, and write it with: go test ./gc -run Matrix -update")
		return
	}
	if err := os.WriteFile("../README.md", []byte(before+begin+table.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Hazard 35 by hand: whoever else is asked decides.
func TestHazard35DeletedByForce(t *testing.T) {
	for _, c := range []struct {
		reason  string
		witness podsource.Pod
	}{
		{"the runtime knows the sandbox", podsource.Pod{UID: "1", ContainerIDs: []string{"sandbox"}}},
		{"the kernel has the address", podsource.Pod{IPs: ips("10.0.0.2")}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			n := newNode(t)
			n.reserve("10.0.0.2", "sandbox", old)
			n.reserve("10.0.0.3", "leaked", old)
			kubelet := podsource.Static{other} // does not list it any more
			report := n.pass(podsource.Union(kubelet, podsource.Static{c.witness}), Options{})
			n.check(report, map[string]Verdict{"10.0.0.2": InUse, "10.0.0.3": Released})
		})
	}
}
