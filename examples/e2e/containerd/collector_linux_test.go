// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// networks is host-local's data directory.
const networks = hostlocal.DefaultDataDir

// A pass is the result of one run of the command: its exit status, and the parts of its JSON that the cases use.
type pass struct {
	status   int
	stderr   string
	verdicts map[netip.Addr]string
	reasons  map[netip.Addr]string
	released map[netip.Addr]string // with their container IDs
	causes   map[netip.Addr]string // of leaks
}

func (p pass) String() string {
	return fmt.Sprintf("exit status %d, verdicts %v, reasons %v, stderr %q", p.status, p.verdicts, p.reasons, p.stderr)
}

// Sources of the command. The node has its own PID namespace, so the kernel is nested.
const (
	kernel = "--source=netns:nested"
	cache  = "--source=cnicache"
)

func (n *node) runtime() string { return "--source=cri:" + n.endpoint() }

// inSeconds are the flags for a minimum age of three seconds, with the sources that it needs.
var inSeconds = []string{kernel, cache, "--min-age", secondsAge.String()}

const secondsAge = 3 * time.Second

// try runs the command for the node's network, with the given flags.
func (n *node) try(command string, flags ...string) (p pass) {
	n.t.Helper()
	status, stdout, stderr := n.hostlocalGC(append([]string{command, "--network", n.network, "-o", "json"}, flags...)...)
	p = pass{
		status: status, stderr: stderr,
		verdicts: make(map[netip.Addr]string), reasons: make(map[netip.Addr]string), released: make(map[netip.Addr]string),
		causes: make(map[netip.Addr]string),
	}
	var report struct {
		Reservations []struct {
			Network     string     `json:"network"`
			IP          netip.Addr `json:"ip"`
			ContainerID string     `json:"containerID"`
			Verdict     string     `json:"verdict"`
			Reason      string     `json:"reason"`
			Cause       string     `json:"cause"`
		} `json:"reservations"`
	}
	if len(stdout) > 0 {
		n.must(json.Unmarshal(stdout, &report))
	}
	for _, r := range report.Reservations {
		if r.Network != n.network {
			continue
		}
		p.verdicts[r.IP], p.reasons[r.IP] = r.Verdict, r.Reason
		if r.Cause != "" {
			p.causes[r.IP] = r.Cause
		}
		if r.Verdict == gc.Released.String() {
			p.released[r.IP] = r.ContainerID
		}
	}
	return p
}

// hostlocalGC runs the command. It gets its own PID namespace, which the nested kernel requires if no container runs.
func (n *node) hostlocalGC(args ...string) (status int, stdout []byte, stderr string) {
	n.t.Helper()
	cmd := exec.Command(bin("hostlocal-gc"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); cmd.ProcessState == nil || !cmd.ProcessState.Exited() {
		n.must(fmt.Errorf("hostlocal-gc %v: %w", args, err))
	}
	return cmd.ProcessState.ExitCode(), out.Bytes(), said.String()
}

// only runs the command with these flags and no other source. It must succeed.
func (n *node) only(command string, flags ...string) pass {
	n.t.Helper()
	p := n.try(command, flags...)
	if p.status != 0 {
		n.t.Fatalf("hostlocal-gc %s %v: %v", command, flags, p)
	}
	return p
}

// release runs a pass with the runtime as a source, at the default minimum age of seven minutes. It must succeed.
func (n *node) release(flags ...string) pass {
	n.t.Helper()
	return n.only("release", append(flags, n.runtime())...)
}

// plan is a dry run of release.
func (n *node) plan(flags ...string) pass {
	n.t.Helper()
	return n.only("plan", append(flags, n.runtime())...)
}

// refused checks that a pass with the runtime fails with one of these texts, and releases nothing.
func (n *node) refused(why ...string) {
	n.t.Helper()
	before := n.reservations()
	n.wantError(n.try("release", n.runtime()), why...)
	same(n.t, "reservations", "the pass was refused", before, n.reservations())
}

func (n *node) wantError(p pass, why ...string) {
	n.t.Helper()
	said := slices.ContainsFunc(why, func(text string) bool { return strings.Contains(p.stderr, text) })
	if p.status != 1 || !said || len(p.released) > 0 {
		n.t.Errorf("the pass did not fail with one of %q: %v", why, p)
	}
}

// entry returns the entry of a sandbox in the answer of the runtime with statuses, which is zero if it is not listed, and
// the note of the answer.
func (n *node) entry(id string) (entry podsource.Pod, note string) {
	n.t.Helper()
	runtime, err := cri.New(n.endpoint(), cri.Options{WithStatus: true})
	n.must(err)
	a, err := runtime.Pods(n.t.Context())
	n.must(err)
	for _, p := range a.Pods {
		if slices.Contains(p.ContainerIDs, id) {
			entry = p
		}
	}
	return entry, a.Note
}

// reservations returns the owner of each reserved address of the network, and "" for an empty file.
func (n *node) reservations() map[netip.Addr]string {
	n.t.Helper()
	all, err := hostlocal.New("").List(context.WithoutCancel(n.t.Context()))
	n.must(err)
	out := make(map[netip.Addr]string)
	for _, r := range all.Reservations {
		if r.Network == n.network {
			out[r.IP] = r.ContainerID
		}
	}
	return out
}

// heldBy returns the addresses that are reserved for one of these containers.
func (n *node) heldBy(ids ...string) (ips []netip.Addr) {
	n.t.Helper()
	for ip, owner := range n.reservations() {
		if slices.Contains(ids, owner) {
			ips = append(ips, ip)
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return ips
}

func (n *node) reservationFile(ip netip.Addr) string {
	return filepath.Join(networks, n.network, ip.String())
}

// stamp sets the age of reservations.
func (n *node) stamp(age time.Duration, ips ...netip.Addr) error {
	var errs []error
	then := time.Now().Add(-age)
	for _, ip := range ips {
		errs = append(errs, os.Chtimes(n.reservationFile(ip), then, then))
	}
	return errors.Join(errs...)
}

// ageMemory makes all first sights older, as if this time had passed since.
func (n *node) ageMemory(d time.Duration) {
	n.t.Helper()
	const file = "/run/hostlocal-gc/memory"
	content, err := os.ReadFile(file)
	n.must(err)
	content = regexp.MustCompile(`(?m)^\d+ \d+:`).ReplaceAllFunc(content, func(text []byte) []byte {
		number, device, _ := strings.Cut(string(text), " ")
		seen, err := strconv.ParseInt(number, 10, 64)
		n.must(err)
		return fmt.Appendf(nil, "%d %s", seen-int64(d), device)
	})
	n.must(os.WriteFile(file, content, 0o600))
}

// age makes all reservations an hour old, so that none is kept for its age (R5).
func (n *node) age() {
	n.t.Helper()
	n.makeOld(time.Hour)
}

// makeOld makes all reservations, and the entries of libcni's caches, older than a minimum age. An entry is not
// younger than its reservation.
func (n *node) makeOld(age time.Duration) {
	n.t.Helper()
	n.must(n.stamp(age, slices.Collect(maps.Keys(n.reservations()))...))
	for _, dir := range []string{cnicache.DefaultDir, multusResults} {
		entries, err := filepath.Glob(dir + "/*")
		n.must(err)
		then := time.Now().Add(-age - 10*time.Second)
		for _, file := range entries {
			n.must(os.Chtimes(file, then, then))
		}
	}
}

// same compares two values, with the reason why they must be equal.
func same[T any](t *testing.T, what, reason string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (%s): (-want +got)\n%s", what, reason, diff)
	}
}

// verdicts returns a map with the same verdict, or owner, for all these addresses.
func verdicts(verdict any, ips ...netip.Addr) map[netip.Addr]string {
	out := make(map[netip.Addr]string)
	for _, ip := range ips {
		out[ip] = fmt.Sprint(verdict)
	}
	return out
}

// joined returns the union of maps.
func joined(all ...map[netip.Addr]string) map[netip.Addr]string {
	out := make(map[netip.Addr]string)
	for _, m := range all {
		maps.Copy(out, m)
	}
	return out
}

// holding returns the expected reservations of these pods.
func holding(pods ...pod) map[netip.Addr]string {
	out := make(map[netip.Addr]string)
	for _, p := range pods {
		maps.Copy(out, verdicts(p.id, p.ips...))
	}
	return out
}

// wantLeft checks that the reservations are those of these pods.
func (n *node) wantLeft(reason string, pods ...pod) {
	n.t.Helper()
	same(n.t, "reservations", reason, holding(pods...), n.reservations())
}
