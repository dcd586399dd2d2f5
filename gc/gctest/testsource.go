// SPDX-License-Identifier: Apache-2.0

package gctest

import (
	"bytes"
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
// another one asks the source, and may end the test. A function that is nil leaves out the rest of each subtest that needs it.
type Fixture struct {
	// Source is the source to test. The members of a [podsource.Union] are tested one by one.
	Source podsource.Source
	// Networks are those of which the source is meant to speak, or [podsource.EveryNetwork], as for a runtime and for a
	// source that is supplementary.
	Networks []string
	// Attach makes an attachment: its ADD has ended. When it returns, the next answer has to have it: a runtime lists the
	// sandbox by now, and a list that is fetched from time to time has been fetched. An attachment in none of Networks is
	// that of another CNI server, and may be ignored. Attach must be set.
	Attach func(podsource.Attachment)
	// Detach ends an attachment: its DEL has ended. Its container and its pod may have others.
	Detach func(podsource.Attachment)
	// Break makes the store, file or server of the source unreadable. Repair ends that.
	Break, Repair func()
	// Lose removes the store with all that is in it, or makes an agent that has not restored it yet.
	Lose func()
	// Reboot boots the node: every attachment has ended without a DEL, and the agent has started again. Source stays the
	// same, and stands for that of the new agent.
	Reboot func()
}

// TestSource tests a source of the caller's own. Each subtest is a hazard that concerns sources: it calls fixture, for a source
// that lists no attachment yet, and lets something happen on the node. Then passes of a [gc.Reconciler] that asks the source
// must keep the reservations of every attached container, and release those of the others as far as the source declares what
// that takes: see [podsource.Answer]. The error of a subtest says which rule the source broke, how, and what to do.
//
// Under the race detector, a source that reads its store while that changes fails, too. TestSource must not run in parallel, like
// tests that call [Uptime].
func TestSource(t *testing.T, fixture func(*testing.T) Fixture) {
	for _, h := range hazards {
		t.Run(h.name, func(t *testing.T) {
			if problem := play(t, fixture(t), h.script); problem != "" {
				t.Error(problem)
			}
		})
	}
}

// hazards are scripts, with their numbers in gc/testdata/hazards.txt. web, web-again and db are
// containers, and web/net1 is the second interface of one, in the second network if there is one.
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
	{"Hazard64ReusedSlice", "attach web, check, attach db, detach web, check"},
	{"Hazard64WhileItChanges", "attach web, while db, check"},
	{"Hazard74OtherNetwork", "attach web, attach elsewhere, check"},
	{"Hazard111Reboot", "attach web, reboot, check, attach db, check"},
}

type attachment = podsource.Attachment

// A script is what happens on a node.
type script struct {
	Fixture
	t               testing.TB
	networks        []string // two of the source's, which may be the same, and another
	events          []string
	changed         time.Time // when the last event began
	attached, ended []attachment
	uptime          time.Duration    // after a reboot: those of ended were made before it
	answer          podsource.Answer // the last one that was checked
	encoded         []byte           // its text then
	old             bool             // it is from before the last event, by its AsOf
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
		same := func(b attachment) bool { return b.ContainerID == at.ContainerID && b.IfName == at.IfName }
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
			change()
		case "break", "repair", "lose":
			change()
		case "while":
			s.checkWhile(func() { f.Attach(at); f.Detach(at) })
		case "error":
			s.checkError()
		case "check":
			s.check(of == "or-old")
		}
	}
	return s.problem
}

// attachment returns the attachment of a name, always the same one.
func (s *script) attachment(name string) attachment {
	container, second, _ := strings.Cut(name, "/")
	at := attachment{Network: s.networks[0], ContainerID: ContainerID(container), IfName: cmp.Or(second, "eth0")}
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
	s.problem = cmp.Or(s.problem, fmt.Sprintf("%s: after %s the source %s.\n%s.\nAttached is %+v, and was %+v.",
		rule, strings.Join(s.events, ", "), did, do, s.attached, s.ended))
}

// check checks an answer, and passes with the source.
func (s *script) check(mayBeOld bool) {
	a, err := s.Source.Pods(s.t.Context())
	if text, _ := json.Marshal(s.answer); s.encoded != nil && !bytes.Equal(text, s.encoded) {
		s.fail("R11", fmt.Sprintf("changed an answer that it had returned, from\n%s to\n%s", s.encoded, text), "Make new slices for each answer")
	}
	if err != nil {
		if len(s.attached) > 0 { // else it may not be sure that there is none
			s.fail("R2", fmt.Sprintf("returned an error: %v", err), "Return the list: beside an error nothing is released")
		}
		return
	}
	s.answer, s.old = a, !a.AsOf.IsZero() && a.AsOf.Before(s.changed)
	s.encoded, _ = json.Marshal(a)
	ended, cancel := context.WithCancel(s.t.Context())
	cancel()
	if part, err := s.Source.Pods(ended); err == nil && len(part.Pods) < len(a.Pods) {
		s.fail("R2", fmt.Sprintf("returned %d of %d pods, and no error, after its context had ended", len(part.Pods), len(a.Pods)), "Return the context's error")
	}
	record := a.Names == podsource.AnyContainer && a.AtOnce && a.Cache == nil && !a.Supplementary
	outside := func(network string) bool { return !podsource.Covers(s.Networks, network) }
	if slices.ContainsFunc(a.Networks, outside) || record && podsource.Covers(a.Networks, podsource.EveryNetwork) || a.Parts != nil {
		s.fail("R14", fmt.Sprintf("speaks of the networks %q", a.Networks), "Name those of which it knows every container, "+
			"and for a record those in which the agent serves every ADD: live addresses of others are released. Test the members of a union one by one")
	}
	var ips []netip.Addr
	more := slices.ContainsFunc(a.Pods, func(p podsource.Pod) bool { return p.MoreIPs })
	for _, p := range a.Pods {
		for _, ip := range p.IPs {
			ips = append(ips, ip.Unmap().WithZone(""))
		}
	}
	for _, at := range s.attached {
		listed := func(ip netip.Addr) bool { return slices.Contains(ips, ip) }
		if slices.ContainsFunc(at.IPs, listed) && slices.ContainsFunc(at.IPs, func(ip netip.Addr) bool { return !listed(ip) }) && !more {
			s.fail("R2", fmt.Sprintf("does not list all of the addresses %v", at.IPs), "List them all, or set MoreIPs")
		}
	}
	starting, none := new(Source), &Source{Declares: podsource.Answer{Names: podsource.AnyContainer, AtOnce: true, Authoritative: true}}
	starting.Set(podsource.Pod{UID: "starting"})
	switch {
	case s.old && mayBeOld:
	case a.Supplementary:
		s.pass("a pass beside a record that lists nothing", 10*time.Minute, none)
	case record:
		s.pass(hook, time.Minute)
		fallthrough
	default:
		s.pass("a pass", time.Hour)
		s.pass("a pass beside a starting pod", time.Hour, starting)
	}
}

const hook = "the hook with NoADDInFlight"

// pass runs a pass over reservations of all attachments, age ago. It has to keep those of attached containers, and to release
// the others if the answer is enough for that.
func (s *script) pass(name string, age time.Duration, beside ...podsource.Source) {
	dir, a := NewDir(s.t), &s.answer
	for i, at := range slices.Concat(s.ended, s.attached) {
		made := age
		if i < len(s.ended) {
			made += s.uptime
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
	if name == hook {
		run = func(ctx context.Context) (gc.Report, error) { return reconciler.AtStartup(ctx, gc.NoADDInFlight) }
	}
	report, err := run(s.t.Context())
	if err != nil {
		if len(s.attached) > 0 || a.Authoritative || !errors.Is(err, gc.ErrNoPods) { // else it is right (R9)
			s.fail("R2", fmt.Sprintf("made %s fail: %v", name, err), "See the error")
		}
		return
	}
	for _, r := range report.Reservations {
		did := fmt.Sprintf("let %s decide that %s in %s, of the container %s, is %s: %s", name, r.IP, r.Network, r.ContainerID, r.Verdict, r.Reason)
		noSource, starting := r.Reason == gc.NoSourceForNetwork, r.Verdict == gc.Starting
		names := a.Supplementary || a.Names.Has(r.ContainerID) || len(beside) == 0 && !starting
		enough := names && len(a.Gaps) == 0 && a.AsOf.IsZero() && s.uptime == 0 || s.uptime > 0 && name == hook // no record has a gap before the boot
		switch live := slices.ContainsFunc(s.attached, func(at attachment) bool { return at.ContainerID == r.ContainerID }); {
		case live && (r.Verdict == gc.InUse || starting || noSource && !podsource.Covers(s.Networks, r.Network)):
		case live && s.old:
			s.fail("R5", did+", by a list of "+a.AsOf.String(), "Let the functions of the fixture wait for the next list")
		case live:
			s.fail("R2", did+", and it is live", "List each container by the ID of its CNI ADD, whole and without a scheme, or by all of its "+
				"addresses. If the list was not made for this question, set AsOf to when it was (hazard 62)")
		case !s.old && (enough && r.Verdict != gc.Released || noSource || r.Verdict == gc.InUse || r.Verdict == gc.Conflict || r.Reason == gc.StaleAnswer):
			s.fail("R3", did+", and it has ended", "Forget an attachment with its DEL, or with the boot, and speak of all of the Networks")
		}
	}
}

// checkError checks that the source returns an error. A supplementary one may declare nothing instead.
func (s *script) checkError() {
	a, err := s.Source.Pods(s.t.Context())
	nothing := a.Supplementary && (a.Names == podsource.KubernetesPods || a.Cache != nil) && len(a.SeesADDs) == 0 && !a.SeesAddresses
	if err == nil && !nothing {
		s.fail("R2", fmt.Sprintf("returned %d pods and no error", len(a.Pods)), "Return an error and no list: neither an empty one, nor a part, nor the last one")
	} else if errors.Is(err, podsource.ErrNotHere) && slices.Contains(s.events, "break") {
		s.fail("R2", fmt.Sprintf("returned the error %q", err), "Return ErrNotHere only if there is no such source on the node (hazard 41)")
	}
}

// checkWhile asks the source while another attachment is made and ended.
func (s *script) checkWhile(change func()) {
	for range 16 {
		asked := make(chan error)
		go func() {
			a, err := s.Source.Pods(s.t.Context())
			if len(a.Pods) == 0 {
				err = cmp.Or(err, errors.New("it lists nothing"))
			}
			asked <- err
		}()
		change()
		if err := <-asked; err != nil {
			s.fail("R2", fmt.Sprintf("was asked while another attachment was made and ended: %v", err), "Change the list or the file as a whole")
		}
	}
}
