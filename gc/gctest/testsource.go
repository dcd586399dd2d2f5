// SPDX-License-Identifier: Apache-2.0

package gctest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// A Fixture is a source, and functions that change what it has to see. They are called from one goroutine, at times while
// another one asks the source, and may end the test. Where one is nil, the subtests that need it end, and log that.
type Fixture struct {
	// Source is the source to test. The sources of a [podsource.Union] are tested one by one.
	Source podsource.Source
	// Networks are those of which the source is meant to speak, or [podsource.EveryNetwork], also for a supplementary one.
	Networks []string
	// Attach, which must be set, makes an attachment: its ADD has ended. The next answer has to have it, so a runtime lists the
	// sandbox, and a cache has fetched the list. One in none of Networks is that of another CNI server, and may be ignored.
	Attach func(podsource.Attachment)
	// Detach ends an attachment: its DEL has ended. Its container and its pod may have others.
	Detach func(podsource.Attachment)
	// Break makes the store, file or server of the source unreadable. Repair ends that.
	Break, Repair func()
	// Lose removes the store, or makes an agent that has not restored it yet. Nil is for one in memory that begins with the agent.
	Lose func()
	// Reboot boots the node: every attachment has ended without a DEL. Source then stands for that of the agent's next start.
	Reboot func()
}

// TestSource tests a source of the caller's own. Each subtest is a hazard that concerns sources: it calls fixture, for a source
// that lists no attachment yet, and lets something happen on the node. Then passes of a [gc.Reconciler] that asks the source
// must keep the reservations of every attached container, and release those of the others if the answer declares what that
// takes: see [podsource.Answer]. The error of a subtest says which rule the source broke, how, and what to do. Under the race
// detector, a source that reads its store while that changes fails, too. Like [Uptime], TestSource must not run in parallel.
func TestSource(t *testing.T, fixture func(*testing.T) Fixture) {
	for _, h := range hazards {
		t.Run(h.name, func(t *testing.T) {
			if problem := play(t, fixture(t), h.script); problem != "" {
				t.Error(problem)
			}
		})
	}
}

// hazards are scripts, by their numbers in gc/testdata/hazards.txt. web and web-again are containers, web/net1 is another interface.
var hazards = []struct{ name, script string }{
	{"Hazard02EveryContainer", "attach web, attach db, check"},
	{"Hazard06Empty", "attach web, detach web, check"},
	{"Hazard07Error", "attach web, break, error, repair, check"},
	{"Hazard08DualStack", "attach dual, check"},
	{"Hazard10Recreated", "attach web, attach db, detach db, attach web-again, detach web, check, attach web, check"}, // 105: a late DEL
	{"Hazard22SecondNetwork", "attach web, attach web/net1, check, detach web, check"},
	{"Hazard26LostStore", "attach web, lose, error"},
	{"Hazard49OtherRuntime", "attach web, check, attach nerdctl, check"},
	{"Hazard62OldList", "attach web, check, attach db, check or-old"},
	{"Hazard64ReusedSlice", "attach web, check, attach db, detach web, check, attach web, check, detach db, check"},
	{"Hazard64WhileItChanges", "attach web, while db, check"},
	{"Hazard74OtherNetwork", "attach web, attach elsewhere, check"},
	{"Hazard111Reboot", "attach web, reboot, check, attach db, check"},
}

// A script is what happens on a node.
type script struct {
	Fixture
	t               testing.TB
	networks        []string // two of the source's, which may be the same, and another
	events          []string
	changed         time.Time // when the last event began
	attached, ended []podsource.Attachment
	uptime          time.Duration    // after a reboot: those of ended were made before it
	answer          podsource.Answer // the last one that was checked
	encoded         string           // its text then
	problem         string           // the first one
}

// play plays a script, and returns the first problem of the source, or "".
func play(t testing.TB, f Fixture, steps string) string {
	if f.Source == nil || f.Attach == nil || len(f.Networks) == 0 {
		return "the fixture must have a Source, its Networks (podsource.EveryNetwork is all) and the function Attach"
	}
	s := &script{Fixture: f, t: t, networks: []string{f.Networks[0], f.Networks[len(f.Networks)-1], "elsewhere"}}
	if podsource.Covers(f.Networks, podsource.EveryNetwork) {
		s.networks = []string{"podnet", "storage", "elsewhere"}
	}
	changes := map[string]func(){"break": f.Break, "repair": f.Repair, "lose": f.Lose, "reboot": f.Reboot}
	for step := range strings.SplitSeq(steps, ", ") {
		verb, of, _ := strings.Cut(step, " ")
		at, change := s.attachment(of), changes[verb]
		same := func(b podsource.Attachment) bool { return b.ContainerID == at.ContainerID && b.IfName == at.IfName }
		if _, ok := changes[verb]; ok && change == nil || f.Detach == nil && (verb == "detach" || verb == "while") {
			t.Logf("the test ends here: the fixture has no function for %q", step)
			break
		}
		if verb != "check" && verb != "error" {
			s.events, s.changed = append(s.events, step), time.Now()
		}
		switch verb {
		case "attach":
			s.attached, s.ended = append(s.attached, at), slices.DeleteFunc(s.ended, same)
			f.Attach(at)
		case "detach":
			s.attached, s.ended = slices.DeleteFunc(s.attached, same), append(s.ended, at)
			f.Detach(at)
		case "reboot":
			s.uptime, s.ended, s.attached = boottime.Since(), s.attached, nil
			Uptime(t, s.uptime) // the source may know it, too
			fallthrough
		case "break", "repair", "lose":
			change()
		case "while":
			for range 16 {
				asked := make(chan error)
				go func() {
					a, err := f.Source.Pods(t.Context())
					text, web := encode(a), s.attached[0]
					listed := func(as string) bool { return strings.Contains(text, `"`+as+`"`) }
					if err == nil && !slices.ContainsFunc([]string{web.ContainerID, web.IPs[0].String(), web.Pod.Name}, listed) {
						err = fmt.Errorf("it lists only %s", text)
					}
					asked <- err
				}()
				f.Attach(at)
				f.Detach(at)
				if err := <-asked; err != nil {
					s.fail("R2", fmt.Sprintf("was asked while the store changed: %v", err), "Change the list or the file as a whole")
				}
			}
		case "error":
			a, err := f.Source.Pods(t.Context())
			declares := a.Cache == nil && a.Names != podsource.KubernetesPods || len(a.SeesADDs) > 0 || a.SeesAddresses || !a.Supplementary
			if err == nil && declares {
				s.fail("R2", fmt.Sprintf("returned %d pods and no error", len(a.Pods)), "Return an error, and no list: neither empty, nor a part")
			} else if errors.Is(err, podsource.ErrNotHere) && slices.Contains(s.events, "break") {
				s.fail("R2", fmt.Sprintf("returned the error %q", err), "Return ErrNotHere only if there is no such source on the node (hazard 41)")
			}
		case "check":
			s.check(of == "or-old")
		}
	}
	return s.problem
}

// attachment returns the attachment of a name, always the same one.
func (s *script) attachment(name string) podsource.Attachment {
	container, second, _ := strings.Cut(name, "/")
	at := podsource.Attachment{Network: s.networks[0], ContainerID: ContainerID(container), IfName: cmp.Or(second, "eth0")}
	at.Pod.Namespace, at.Pod.Name = "default", strings.TrimSuffix(container, "-again")
	at.IPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 88, byte(len(name)), at.ContainerID[0]})}
	switch {
	case second != "":
		at.Network = s.networks[1]
	case name == "elsewhere":
		at.Network = name
	case name == "nerdctl" && s.answer.Names == podsource.AnyContainer:
		at.ContainerID = "default-" + at.ContainerID
	case name == "dual":
		at.IPs = append(at.IPs, netip.MustParseAddr("fd00:88::2"))
	}
	return at
}

// fail records, for the first problem, which rule the source broke, how, and what to do.
func (s *script) fail(rule, did, do string) {
	s.problem = cmp.Or(s.problem, fmt.Sprintf("%s: after %q the source %s.\n%s.\nAttached now: %+v; ended: %+v.",
		rule, strings.Join(s.events, ", "), did, do, s.attached, s.ended))
}

func encode(a podsource.Answer) string {
	text, err := json.Marshal(a)
	return string(text) + fmt.Sprint(err)
}

// check checks an answer, and passes with the source.
func (s *script) check(mayBeOld bool) {
	a, err := s.Source.Pods(s.t.Context())
	if now := encode(s.answer); s.encoded != "" && now != s.encoded {
		s.fail("R11", "changed an answer that it had returned, from\n"+s.encoded+" to\n"+now, "Make new slices for each answer")
	}
	if err != nil {
		if len(s.attached) > 0 { // else it may not be sure that there is none
			s.fail("R2", fmt.Sprintf("returned an error: %v", err), "Return the list: beside an error nothing is released")
		}
		return
	}
	s.answer, s.encoded = a, encode(a)
	ended, cancel := context.WithCancel(s.t.Context())
	cancel()
	if part, err := s.Source.Pods(ended); err == nil && len(part.Pods) < len(a.Pods) {
		s.fail("R2", fmt.Sprintf("returned %d of %d pods and no error for an ended context", len(part.Pods), len(a.Pods)), "Return its error")
	}
	record := a.Names == podsource.AnyContainer && a.AtOnce && !a.Supplementary
	outside := func(network string) bool { return !podsource.Covers(s.Networks, network) }
	if slices.ContainsFunc(a.Networks, outside) || record && podsource.Covers(a.Networks, podsource.EveryNetwork) || a.Parts != nil {
		s.fail("R14", fmt.Sprintf("speaks of the networks %q", a.Networks), "Name those of which it knows every container, and for a record "+
			"those in which the agent serves every ADD: live addresses of others are released. Test the sources of a union one by one")
	}
	for _, at := range s.attached {
		listed := func(ip netip.Addr) bool { return strings.Contains(s.encoded, ip.String()) }
		if n := len(slices.DeleteFunc(slices.Clone(at.IPs), listed)); n > 0 && n < len(at.IPs) && !strings.Contains(s.encoded, `"MoreIPs":true`) {
			s.fail("R2", fmt.Sprintf("does not list all of the addresses %v", at.IPs), "List them all, or set MoreIPs")
		}
	}
	starting, none := new(Source), &Source{Declares: podsource.Answer{Names: podsource.AnyContainer, AtOnce: true, Authoritative: true}}
	starting.Set(podsource.Pod{UID: "starting"})
	switch {
	case mayBeOld && !a.AsOf.IsZero() && a.AsOf.Before(s.changed):
	case a.Supplementary:
		s.pass("a pass beside a record that lists nothing", 10*time.Minute, none)
	default:
		s.pass("a pass", time.Hour)
		s.pass("a pass beside a starting pod", time.Hour, starting)
		if record && s.problem == "" && (a.Authoritative || len(a.Pods) > 0) { // else the hook waits
			s.pass("the hook with NoADDInFlight", time.Minute)
		}
	}
}

// pass runs a pass over reservations that are age old. It must keep those of attached containers, and may release the others.
func (s *script) pass(name string, age time.Duration, beside ...podsource.Source) {
	dir, a, hook := NewDir(s.t), &s.answer, strings.HasPrefix(name, "the hook")
	for i, at := range slices.Concat(s.ended, s.attached) {
		made := age + s.uptime
		if i >= len(s.ended) {
			made = age
		}
		for _, ip := range at.IPs {
			dir.Reserve(at.Network, ip.String(), at.ContainerID, made)
		}
	}
	reconciler, err := gc.New(dir.Store, slices.Compact(slices.Clone(s.networks)), podsource.Union(append(beside, s.Source)...), gc.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	run := reconciler.Reconcile
	if hook {
		run = func(ctx context.Context) (gc.Report, error) { return reconciler.AtStartup(ctx, gc.NoADDInFlight) }
	}
	report, err := run(s.t.Context())
	if err != nil {
		if len(s.attached) > 0 || !errors.Is(err, gc.ErrNoPods) { // else it is right (R9)
			s.fail("R2", fmt.Sprintf("made %s fail: %v", name, err), "See the error")
		}
		return
	}
	for _, r := range report.Reservations {
		did := fmt.Sprintf("let %s call %s in %s, of the container %s, %s (%s)", name, r.IP, r.Network, r.ContainerID, r.Verdict, r.Reason)
		noSource, starting, over := r.Reason == gc.NoSourceForNetwork, r.Verdict == gc.Starting, strings.Contains(s.encoded, `"Finished":true`)
		names := a.Supplementary || a.Names.Has(r.ContainerID) || len(beside) == 0 && !starting
		enough := names && s.uptime == 0 && len(a.Gaps) == 0 && a.AsOf.IsZero() || s.uptime > 0 && hook // no record has a gap before the boot
		switch live := slices.ContainsFunc(s.attached, func(at podsource.Attachment) bool { return at.ContainerID == r.ContainerID }); {
		case live && (len(s.ended) > 0 || !over) && (r.Verdict == gc.InUse || starting || noSource && !podsource.Covers(s.Networks, r.Network)):
		case live:
			s.fail("R2", did+", and it is live", "List each container as live until the last DEL, by the ID of its CNI ADD, whole and without "+
				"a scheme, or by all its addresses. If the list is older, set AsOf, and let the functions of the fixture wait for the next one")
		case !live && r.Verdict != gc.Released && (enough || r.Verdict == gc.InUse || r.Reason == gc.StaleAnswer):
			s.fail("R3", did+", and it has ended", "Forget an attachment with its DEL, or with the boot, and speak of all of the Networks")
		}
	}
}
