// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A simulation is a node with pods, sandboxes, three networks, clocks, and the answers of each kind of source. It knows which addresses
// are live, so it detects the release of one. The data directory, host-local's allocator and the Reconciler are real; time is simulated.
// Operations change it: see simOp.
//
// It does whatever A1 to A4 allow. sim_rules_linux_test.go prevents what they exclude.
type simulation struct {
	dir    string
	config simConfig
	opts   Options
	nets   []*simNet
	told   simCase
	broken error // the first violation

	now      time.Duration // real time, and the monotonic clock
	offset   time.Duration // of the wall clock
	bootedAt time.Duration
	stepAt   time.Duration // of the clock's last step; zero: none
	missedAt time.Duration // of the last one before the agent started
	unread   bool          // the agent has not read the clock since the step
	memory   time.Duration // since when the agent has a memory in this boot; zero: none

	serial    int
	pods      []*simPod // that kubelet lists
	api       []podsource.Pod
	apiAt     time.Duration
	sandboxes []*simSandbox // that are alive, or that a source still lists
	pending   []*simSandbox // terminated ones whose DEL comes later
	leaked    []*simSandbox // terminated ones that may have leaked reservations
	cache     map[simAttachment]simRecord
	// What the cache's source remembers from call to call.
	cacheSeen  map[simAttachment]simRecord
	cacheSince map[string]time.Time
	files      map[simAddress]*simFile       // the files on the disk, as far as the simulation knows
	stats      map[simAddress]syscall.Stat_t // of the last file for the address
	agent      *Reconciler
	pass       *simPass // that is under way, or nil
	fault      simFault // of the next pass

	steps, passes, releases int
	worst                   time.Duration // from the last fault to the release of a leak
}

// A simConfig has the constants of a simulation, which depend on its seed.
type simConfig struct {
	sources              []simKind // united, in this order
	opts                 Options   // the durations
	memory, allowForeign bool      // Options.Memory is set; Options.AllowForeign allows the other tool's containers
	overlap, noBoot      bool      // two networks have the same IPv4 subnet; when the node booted is unknown
	allowEmpty           bool      // AllowEmpty; else each source always lists the agent's own pod
	asOf, recordAll      bool      // the API server's list has a date, else it is never old; the record has all networks
	stuck, hookOnly      bool      // after the last fault: pods are still starting; only the hook runs, once an hour
	freeText             bool      // half of the other tool's owners are free text
}

// simNetworks begins with the networks to release in.
var simNetworks = []string{"podnet", "second", "third"}

const simNamed = 2

type simNet struct {
	plugin *disk.Store
	ranges []*allocator.IPAllocator
}

type simPod struct {
	name, uid           string
	hostNetwork, static bool
	nets                []int
	elsewhere           bool // its first address is not host-local's, and the status does not list the others
	second              bool // the second runtime runs it
	noEnd               bool // no end is reported
	started, finished   time.Duration
	startedAt           time.Time // by the wall clock at that time
	finishedAt          time.Time
	sandboxes           []*simSandbox

	// The status, which kubelet updates late and in part.
	reported, ended bool
	statusIPs       []netip.Addr
}

type simSandbox struct {
	name, id    string
	podName     string
	serial      int
	pod         *simPod       // nil: another tool runs it
	made, last  time.Duration // when its first and its last reservation were made
	addrs       []simAddress
	lastBefore  time.Duration // the last reservation before the pass under way, at whose begin the ADD was in flight or not
	wasInFlight bool
	todo        []func() bool // the remaining steps of its ADD
	wants       netip.Addr    // an address that the runtime asks for by name
	alive       bool          // its network namespace exists, or will soon
	done        bool          // its ADD is
	listed      bool          // by the runtime, in any state
	lost        bool          // the runtime has no record of it (hazard 33)
	invisible   bool          // its namespace shows no address (hazard 59)
	freeText    bool          // its owner is a word, and in no namespace (hazard 86)
}

type simAddress struct {
	net int
	ip  netip.Addr
}

type simAttachment struct {
	net int
	id  string
}

type simFile struct {
	owner   *simSandbox // nil: it is malformed, or empty
	ino     uint64
	empty   bool
	damaged bool // its owner can't be read any more
	at      int  // the number of passes begun before it was made
	stamp   time.Time
}

// A simRecord is a file in libcni's cache.
type simRecord struct {
	owner *simSandbox
	stamp time.Time
}

func (p *simPod) lives() bool {
	return slices.ContainsFunc(p.sandboxes, func(b *simSandbox) bool { return b.alive })
}

// starting reports whether a pod may count as starting (R4).
func (p *simPod) starting() bool {
	return !p.hostNetwork && p.finished == 0 && (len(p.statusIPs) == 0 || p.elsewhere)
}

func (b *simSandbox) inFlight() bool { return b.alive && !b.done }
func (b *simSandbox) foreign() bool  { return b.pod == nil }

// simProcess has a reading of the monotonic clock, as the dates of an informer have it.
var simProcess = time.Now()

var simEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newSimulation(base string, config simConfig) *simulation {
	s := &simulation{config: config, cache: make(map[simAttachment]simRecord), files: make(map[simAddress]*simFile),
		stats: make(map[simAddress]syscall.Stat_t), told: simCase{said: make(map[simKind]podsource.Answer)}}
	var errs [3]error
	s.opts, errs[0] = config.opts.WithDefaults()
	s.dir, errs[1] = os.MkdirTemp(base, "sim")
	s.boot(time.Second) // a time of zero is never
	s.tellConfig()
	for i, name := range simNetworks {
		n := new(simNet)
		n.plugin, errs[2] = disk.New(name, s.dir)
		subnets := []string{fmt.Sprintf("10.%d.0.0/28", i+1), "fd00:1::/124"}[:2-min(i, 1)]
		if config.overlap && i == 1 {
			subnets[0] = "10.1.0.0/28"
		}
		for id, subnet := range subnets {
			set := make(allocator.RangeSet, 1)
			errs[2] = errors.Join(errs[2], json.Unmarshal(fmt.Appendf(nil, `[{"subnet": %q}]`, subnet), &set), set.Canonicalize())
			n.ranges = append(n.ranges, allocator.NewIPAllocator(&set, n.plugin, id))
		}
		if s.nets = append(s.nets, n); errors.Join(errs[:]...) != nil {
			s.violate("%v", errs)
			return s
		}
	}
	if !config.allowEmpty {
		s.startPod(&simPod{hostNetwork: true, nets: []int{}})
		if s.has(fromRuntime2) {
			s.startPod(&simPod{hostNetwork: true, nets: []int{}, second: true})
		}
	}
	s.restart()
	return s
}

func (s *simulation) close() {
	for _, n := range s.nets {
		_ = n.plugin.Close()
	}
	_ = os.RemoveAll(s.dir) // else the test removes its own directory
}

func (s *simulation) wall() time.Time { return simEpoch.Add(s.now + s.offset) }

func (s *simulation) reading() reading {
	r := reading{wall: s.wall(), mono: s.now, boot: s.now - s.bootedAt, now: simProcess.Add(s.now)}
	if s.config.noBoot {
		r.boot = 0
	}
	return r
}

// restart restarts the agent: it has a new Reconciler and a new list of the API server.
func (s *simulation) restart() {
	opts := s.config.opts
	opts.SourceTimeout = time.Hour // tests may be slow; the context ends hanging sources
	if s.config.allowForeign {
		opts.AllowForeign = []string{"default-"}
	}
	if s.config.memory {
		opts.Memory = s.memoryPath()
	}
	if s.agent != nil {
		s.told.line("restart")
	}
	r, err := New(hostlocal.New(s.dir), simNetworks[:simNamed], s.source(), opts)
	if err != nil {
		s.violate("making a reconciler: %v", err)
		return
	}
	r.disk = contextDisk{r.disk, func(ctx context.Context) context.Context { return simContext{ctx, s} }}
	r.clock = clock{}
	r.clock.observe(s.reading())
	r.now, r.sleep = s.readClock, s.sleep
	if s.agent, s.unread, s.cacheSeen = r, false, nil; !s.remembered() {
		s.missedAt = s.stepAt
	}
	s.syncAPI()
}

func (s *simulation) memoryPath() string { return filepath.Join(s.dir, ".memory") }

// remembered reports whether the agent's memory shows the last step of the clock.
func (s *simulation) remembered() bool { return s.memory > 0 && s.stepAt >= s.memory }

// lookAtClock makes the agent notice a step, and remember it.
func (s *simulation) lookAtClock() {
	if s.agent.clock.observe(s.agent.now()); s.config.memory && s.memory > 0 {
		s.agent.useMemory(context.Background(), new(Report), true)
	}
}

// readClock reads the clocks for a pass. Operations may happen before and after.
func (s *simulation) readClock() reading {
	if s.pass != nil {
		s.pass.begun = true
	}
	s.doNext()
	now := s.reading()
	s.unread = false
	s.doNext()
	return now
}

// sleep replaces the pause between two looks.
func (s *simulation) sleep(ctx context.Context, d time.Duration) bool {
	s.told.at += d // a case waits by itself
	s.advance(d)
	s.doNext()
	return ctx.Err() == nil
}

func (s *simulation) has(kinds ...simKind) bool {
	return slices.ContainsFunc(s.config.sources, func(k simKind) bool { return slices.Contains(kinds, k) })
}

func (s *simulation) violate(format string, args ...any) {
	if s.broken == nil {
		s.broken = fmt.Errorf(format, args...)
	}
}

func (s *simulation) path(a simAddress) string {
	return filepath.Join(s.dir, simNetworks[a.net], a.ip.String())
}

// name returns an address as cases have it.
func (s *simulation) name(a simAddress) string {
	return strings.TrimPrefix(simNetworks[a.net]+"/"+a.ip.String(), "podnet/")
}

// holder returns the live sandbox that has a reservation, or nil.
func (s *simulation) holder(a simAddress) *simSandbox {
	i := slices.IndexFunc(s.sandboxes, func(b *simSandbox) bool { return b.alive && slices.Contains(b.addrs, a) })
	if i < 0 {
		return nil
	}
	return s.sandboxes[i]
}

// inode returns that of the file for an address, or 0.
func (s *simulation) inode(a simAddress) uint64 {
	var st syscall.Stat_t
	_ = syscall.Lstat(s.path(a), &st)
	return st.Ino
}

func (s *simulation) onDisk(a simAddress) bool { return s.inode(a) > 0 }

// check fails the simulation if a live sandbox has lost a reservation.
func (s *simulation) check() {
	for _, b := range s.sandboxes {
		for _, a := range b.addrs {
			if f := s.files[a]; b.alive && (f == nil || f.owner != b || s.inode(a) != f.ino) {
				s.violate("%s of the live %s (of %s, in flight: %t, made %v ago) was released", s.name(a), b.name, b.podName, b.inFlight(),
					s.now-b.made)
			}
		}
	}
}

// simDir returns a directory for simulations, in memory where that is possible.
func simDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hostlocal-gc-") //nolint:usetesting // many small files are ten times as fast in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
