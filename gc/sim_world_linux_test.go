// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A world is a node with everything on it that matters to reservations: pods,
// sandboxes, two networks, clocks, and what kubelet, the API server, the runtime
// and the kernel say of them. It knows the truth, so it can tell when a live
// address was released. It is driven by operations; see simOp.
//
// The world does what A1 to A4 allow, and nothing they exclude. What they
// exclude is kept in three places: deadlines, canRestart, and the views.
type simWorld struct {
	dir    string
	nets   [2]*simNet
	kinds  []simKind // of source, united
	trace  func(format string, args ...any)
	broken error // the first violation

	now      time.Duration // real time, and the monotonic clock
	offset   time.Duration // of the wall clock
	lastStep time.Duration
	stepped  bool

	serial   int
	pods     []*simPod // that kubelet knows
	api      []podsource.Pod
	apiAt    time.Duration
	boxes    []*simBox // that are alive, or that the runtime still lists
	pending  []*simBox // dead ones, whose DEL is still to come
	leaked   []*simBox // dead ones that left reservations behind, perhaps
	fails    bool      // the source's next answer is an error
	failed   bool      // its last one was
	held     map[netip.Addr]*simBox
	files    map[string]bool // what is on the disk, as far as the world knows
	cons     [2]*Reconciler
	passing  bool
	steps    int
	releases int
}

type simNet struct {
	name   string
	store  *hostlocal.Store
	plugin *disk.Store
	ranges []*allocator.IPAllocator
}

type simPod struct {
	name, uid           string
	hostNetwork, second bool
	startedAt           time.Time // by the wall clock of then
	finishedAt          time.Time
	finished            time.Duration // real time
	boxes               []*simBox

	// What kubelet has put into the status, late and in part.
	reported  bool
	statusIPs []netip.Addr
	statusEnd time.Time
}

type simBox struct {
	id       string
	pod      *simPod
	made     time.Duration // when its first reservation was made
	addrs    []simAddr
	todo     []func() bool // what is left of its ADD
	wants    netip.Addr    // an address that the runtime asks for by name
	alive    bool          // its network namespace is there, or about to be
	done     bool          // its ADD is
	listed   bool          // by the runtime, in any state
	recorded bool          // in the agent's own record
}

type simAddr struct {
	net int
	ip  netip.Addr
}

// A simKind is a kind of source.
type simKind int

const (
	fromAPI simKind = iota
	fromKubelet
	fromRuntime
	fromKernel
	fromRecord
)

var simEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	// What the world keeps to, so that DefaultMinAge covers it (A2).
	maxInFlight  = 4 * time.Minute
	maxStaleness = 50 * time.Second
)

func newSimWorld(dir string, kinds []simKind, trace func(string, ...any)) (*simWorld, error) {
	w := &simWorld{dir: dir, kinds: kinds, trace: trace, held: make(map[netip.Addr]*simBox), files: make(map[string]bool),
		now: time.Second} // zero is never
	for i, def := range []struct {
		name    string
		subnets []string
	}{{"podnet", []string{"10.1.0.0/28", "fd00:1::/124"}}, {"second", []string{"10.2.0.0/28"}}} {
		n := &simNet{name: def.name}
		var err error
		if n.plugin, err = disk.New(def.name, dir); err != nil {
			return nil, err
		}
		if n.store, err = hostlocal.New(dir, def.name); err != nil {
			return nil, err
		}
		for id, subnet := range def.subnets {
			_, ipnet, err := net.ParseCIDR(subnet)
			if err != nil {
				return nil, err
			}
			set := make(allocator.RangeSet, 1)
			set[0].Subnet.IP, set[0].Subnet.Mask = ipnet.IP, ipnet.Mask
			if err := set.Canonicalize(); err != nil {
				return nil, err
			}
			n.ranges = append(n.ranges, allocator.NewIPAllocator(&set, n.plugin, id))
		}
		w.nets[i] = n
	}
	w.restart()
	return w, nil
}

func (w *simWorld) close() {
	for _, n := range w.nets {
		_ = n.plugin.Close()
	}
}

func (w *simWorld) wall() time.Time { return simEpoch.Add(w.now + w.offset) }

// restart makes the agent anew: it forgets what it saw of the clock.
func (w *simWorld) restart() {
	for i := range w.nets {
		opts := Options{Siblings: []*hostlocal.Store{w.nets[1-i].store}, AllowEmpty: true}
		w.cons[i] = newAt(w.nets[i].store, podsource.Func(w.answer), opts, time.Now(), moment{w.wall(), w.now})
	}
}

// canRestart says when an agent may start anew: a step of the clock before its
// start it can't see (A4).
func (w *simWorld) canRestart() bool {
	if !w.stepped {
		return true
	}
	return w.now-w.lastStep > 10*time.Minute && !slices.ContainsFunc(w.pods, func(p *simPod) bool { return len(p.statusIPs) == 0 })
}

func (w *simWorld) has(k simKind) bool { return slices.Contains(w.kinds, k) }

// byName says that only the pods' own status names who holds what.
func (w *simWorld) byStatusOnly() bool { return !w.has(fromRuntime) && !w.has(fromKernel) }

func (w *simWorld) violate(format string, args ...any) {
	if w.broken == nil {
		w.broken = fmt.Errorf(format, args...)
		w.trace("VIOLATION: %v", w.broken)
	}
}

func (w *simWorld) key(net int, ip netip.Addr) string { return w.nets[net].name + "/" + ip.String() }

// reserve is one half of an ADD: host-local's own allocator, in one range.
func (w *simWorld) reserve(b *simBox, net, set int) bool {
	var requested []byte
	if net == 0 && b.wants.IsValid() && b.wants.Is4() == (set == 0) {
		requested = b.wants.AsSlice()
	}
	cfg, err := w.nets[net].ranges[set].Get(b.id, "eth0", requested)
	if err != nil {
		w.trace("ADD of %s in %s: %v", b.id, w.nets[net].name, err)
		return false
	}
	ip, _ := netip.AddrFromSlice(cfg.Address.IP)
	ip = ip.Unmap()
	at := w.wall()
	if err := os.Chtimes(filepath.Join(w.dir, w.nets[net].name, ip.String()), at, at); err != nil {
		w.violate("stamping %s: %v", ip, err)
	}
	w.trace("ADD reserved %s for %s of %s", w.key(net, ip), b.id, b.pod.uid)
	if other := w.held[ip]; other != nil {
		w.violate("%s is held by %s and was given to %s", ip, other.id, b.id)
	}
	w.held[ip] = b
	w.files[w.key(net, ip)] = true
	if len(b.addrs) == 0 {
		b.made = w.now
	}
	b.addrs = append(b.addrs, simAddr{net, ip})
	return true
}

// begin starts the ADD of a new sandbox: its first reservation is made, the rest
// is left to go.
func (w *simWorld) begin(p *simPod, wants netip.Addr) {
	w.serial++
	b := &simBox{id: fmt.Sprintf("box%d", w.serial), pod: p, alive: true, wants: wants}
	p.boxes = append(p.boxes, b)
	w.boxes = append(w.boxes, b)
	b.todo = []func() bool{func() bool { return w.reserve(b, 0, 0) }, func() bool { return w.reserve(b, 0, 1) }}
	if p.second {
		b.todo = append(b.todo, func() bool { return w.reserve(b, 1, 0) })
	}
	w.proceed(b)
}

// proceed does the next step of an ADD that is in flight.
func (w *simWorld) proceed(b *simBox) {
	if len(b.todo) == 0 {
		b.done, b.listed, b.recorded = true, true, true
		w.trace("ADD of %s is done", b.id)
		return
	}
	step := b.todo[0]
	b.todo = b.todo[1:]
	if !step() {
		w.stop(b, delNow)
	}
}

func (b *simBox) inFlight() bool { return b.alive && !b.done }

type delFate int

const (
	delNow delFate = iota
	delTwice
	delLate
	delLost
)

// stop takes a sandbox down: first its namespace, then its reservations, as far
// as the DEL gets through.
func (w *simWorld) stop(b *simBox, fate delFate) {
	w.trace("%s is stopped, DEL %d", b.id, fate)
	w.die(b)
	b.listed, b.recorded = false, false
	w.boxes = slices.DeleteFunc(w.boxes, func(o *simBox) bool { return o == b })
	switch fate {
	case delNow:
		w.del(b)
	case delTwice:
		w.del(b)
		w.pending = append(w.pending, b)
	case delLate:
		w.pending = append(w.pending, b)
	case delLost:
		w.leaked = append(w.leaked, b)
	}
}

// die ends a sandbox's hold on its addresses: its namespace is gone.
func (w *simWorld) die(b *simBox) {
	if !b.alive {
		return
	}
	b.alive, b.todo = false, nil
	for _, a := range b.addrs {
		if w.held[a.ip] == b {
			delete(w.held, a.ip)
		}
	}
}

// del is CNI DEL: host-local's own code, in every network.
func (w *simWorld) del(b *simBox) {
	for i, n := range w.nets {
		for _, r := range n.ranges {
			if err := r.Release(b.id, "eth0"); err != nil {
				w.violate("DEL of %s: %v", b.id, err)
			}
		}
		for _, a := range b.addrs {
			if a.net == i && !w.onDisk(w.key(i, a.ip)) {
				delete(w.files, w.key(i, a.ip))
			}
		}
	}
	w.trace("DEL of %s", b.id)
}

func (w *simWorld) onDisk(key string) bool {
	_, err := os.Lstat(filepath.Join(w.dir, key))
	return err == nil
}

// deadlines does by force what must have happened by now (A2).
func (w *simWorld) deadlines() {
	for _, b := range slices.Clone(w.boxes) {
		if b.inFlight() && w.now-b.made >= maxInFlight {
			for b.inFlight() {
				w.proceed(b)
			}
		}
	}
	if !w.byStatusOnly() {
		return
	}
	for _, p := range w.pods {
		for _, b := range slices.Clone(p.boxes) {
			// Nobody but the status names it, and a pod that has addresses is not
			// taken for a starting one.
			if b.alive && len(b.addrs) > 0 && len(p.statusIPs) > 0 && w.now-b.made >= maxInFlight && !b.named() {
				w.report(p, 0)
			}
			if b.alive && p.finished > 0 && w.now-p.finished >= maxInFlight {
				w.stop(b, delLost)
			}
		}
	}
}

// named says whether its pod's status has one of its addresses.
func (b *simBox) named() bool {
	return slices.ContainsFunc(b.addrs, func(a simAddr) bool { return slices.Contains(b.pod.statusIPs, a.ip) })
}

// report puts into a pod's status what kubelet knows by now: all of it, or only
// its start, or only one address.
func (w *simWorld) report(p *simPod, part uint32) {
	p.reported = true
	p.statusEnd = p.finishedAt
	if part%3 == 2 && len(p.statusIPs) == 0 {
		return // without addresses for now
	}
	var ips []netip.Addr
	for _, b := range p.boxes {
		if !b.alive || b.inFlight() {
			continue
		}
		for _, a := range b.addrs {
			if a.net == 0 { // the second network is in no status
				ips = append(ips, a.ip)
			}
		}
	}
	if part%3 == 1 && len(ips) > 1 {
		ips = ips[:1]
	}
	if len(ips) > 0 {
		p.statusIPs = ips
	}
	w.trace("status of %s: %v, ended %v", p.uid, p.statusIPs, !p.statusEnd.IsZero())
}

// Views: what each kind of source says. They must name every holder whose
// reservation is older than DefaultMinAge.

func (p *simPod) view() podsource.Pod {
	out := podsource.Pod{
		NamespacedName: types.NamespacedName{Namespace: "default", Name: p.name}, UID: types.UID(p.uid),
		IPs: slices.Clone(p.statusIPs), HostNetwork: p.hostNetwork, FinishedAt: p.statusEnd,
	}
	if p.reported {
		out.StartedAt = p.startedAt.Truncate(time.Second)
	}
	return out
}

func (w *simWorld) syncAPI() {
	w.api, w.apiAt = nil, w.now
	for _, p := range w.pods {
		w.api = append(w.api, p.view())
	}
}

func (w *simWorld) views(k simKind) (pods []podsource.Pod) {
	switch k {
	case fromAPI:
		if w.now-w.apiAt > maxStaleness {
			w.syncAPI()
		}
		return w.api
	case fromKubelet:
		for _, p := range w.pods {
			pods = append(pods, p.view())
		}
	case fromRuntime:
		for _, b := range w.boxes {
			if b.listed {
				pods = append(pods, podsource.Pod{UID: types.UID(b.pod.uid), ContainerIDs: []string{b.id}})
			}
		}
	case fromKernel:
		for _, b := range w.boxes {
			if b.alive && !b.inFlight() {
				p := podsource.Pod{}
				for _, a := range b.addrs {
					p.IPs = append(p.IPs, a.ip)
				}
				pods = append(pods, p)
			}
		}
	case fromRecord:
		for _, b := range w.boxes {
			if b.recorded {
				pods = append(pods, podsource.Pod{ContainerIDs: []string{b.id}})
			}
		}
	}
	return pods
}

var errAway = errors.New("source is away")

// answer is the reconciler's source.
func (w *simWorld) answer(ctx context.Context) ([]podsource.Pod, error) {
	_ = ctx.Err() // the world's turn before the answer
	var sources []podsource.Source
	for _, k := range w.kinds {
		sources = append(sources, podsource.Static(w.views(k)))
	}
	pods, err := podsource.Union(sources...).Pods(context.Background())
	if w.fails {
		w.fails, w.failed = false, true
		err = errAway
	}
	_ = ctx.Err() // and before it is heard
	if c, ok := ctx.(*simContext); ok {
		c.answered = true
	}
	return pods, err
}

// check compares the disk with the truth: who lives has his reservation.
func (w *simWorld) check() {
	for _, b := range w.boxes {
		if !b.alive {
			continue
		}
		for _, a := range b.addrs {
			content, err := os.ReadFile(filepath.Join(w.dir, w.nets[a.net].name, a.ip.String()))
			if err != nil || !strings.HasPrefix(string(content), b.id+"\r\n") {
				w.violate("%s of the live %s (pod %s, in flight: %t, made %v ago) was released", w.key(a.net, a.ip), b.id, b.pod.uid, b.inFlight(), w.now-b.made)
			}
		}
	}
}

// pass has the reconciler of one network do one pass, and the world gets its
// turn wherever turn is called.
func (w *simWorld) pass(net int, ctx context.Context) {
	w.trace("pass over %s begins at %v, wall clock %v", w.nets[net].name, w.now, w.wall().Format(time.DateTime))
	report, err := w.cons[net].pass(ctx, func() moment { return moment{w.wall(), w.now} })
	if err != nil && !errors.Is(err, errAway) {
		w.violate("pass: %v", err)
	}
	if w.failed && err == nil {
		w.violate("an error of the source was lost")
	}
	w.failed = false
	released := make(map[string]bool)
	for _, e := range report.Reservations {
		w.trace("%s is %s: %s", w.key(net, e.IP), e.Verdict, e.Reason)
		if e.Verdict == Released {
			released[w.key(net, e.IP)] = true
			w.releases++
		}
	}
	// R11: what went away, and not by the world's own doing, is in the report.
	for key := range w.files {
		if !w.onDisk(key) {
			if !released[key] {
				w.violate("%s went away, and no report says so", key)
			}
			delete(w.files, key)
		}
	}
	w.check()
}

// settle lets everything come to its end, and looks for leaks that are left.
func (w *simWorld) settle() {
	w.fails = false
	for _, b := range slices.Clone(w.boxes) {
		for b.inFlight() {
			w.proceed(b)
		}
		if !b.alive {
			w.stop(b, delLost) // the runtime forgets it at last
		}
	}
	w.pods = slices.DeleteFunc(w.pods, func(p *simPod) bool {
		if p.finished > 0 {
			for _, b := range slices.Clone(p.boxes) {
				if b.alive {
					w.stop(b, delLost)
				}
			}
		}
		return p.finished > 0 || !p.hostNetwork && !slices.ContainsFunc(p.boxes, func(b *simBox) bool { return b.alive })
	})
	for _, p := range w.pods {
		w.report(p, 0)
	}
	w.pending = nil
	w.syncAPI()
	for range 2 {
		w.now += DefaultMinAge + time.Minute
		w.deadlines()
		for net := range w.nets {
			w.pass(net, context.Background())
		}
	}
	live := make(map[string]bool)
	for _, b := range w.boxes {
		for _, a := range b.addrs {
			live[w.key(a.net, a.ip)] = live[w.key(a.net, a.ip)] || b.alive
		}
	}
	for key := range w.files {
		if !live[key] {
			w.violate("%s is leaked, and still there after quiet time and two passes", key)
		}
	}
}
