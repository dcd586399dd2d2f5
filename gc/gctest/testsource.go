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

// A Fixture is a source, and functions that change what it has to see. They are called from one
// goroutine, at times while another one asks the source, and may end the test.
type Fixture struct {
	// Source is the source to test. The members of a [podsource.Union] are tested one by one.
	Source podsource.Source
	// Networks are those of which the source is meant to speak, or [podsource.EveryNetwork], as for
	// a runtime and for a source that is supplementary. The first two are used.
	Networks []string
	// Attach makes an attachment: its ADD has ended. When it returns, the next answer has to have
	// it: a runtime lists the sandbox by now, and a list that is fetched from time to time has been
	// fetched. An attachment in none of Networks is that of another CNI server, and may be ignored.
	Attach func(podsource.Attachment)
	// Detach ends an attachment: its DEL has ended. Its container and its pod may have others.
	Detach func(podsource.Attachment)
	// Break makes the store, file or server of the source unreadable. Repair ends that.
	Break, Repair func()
	// Lose removes the store with all that is in it, or makes an agent that has not restored it yet.
	Lose func()
	// Reboot boots the node: every attachment has ended without a DEL, and the agent has started
	// again. Source stays the same, and stands for that of the new agent.
	Reboot func()
}

// TestSource tests a source of the caller's own. In a subtest for each hazard that concerns a source
// something happens on a node. Then passes of a [gc.Reconciler] that asks the source must keep the
// reservations of every attached container, and release those of the others as far as the source
// declares what that takes: see [podsource.Answer]. Under the race detector, a source that reads its
// store while that changes fails, too.
//
// Each subtest calls fixture, for a source that lists no attachment yet. It ends, and logs that, at
// a function that is nil. Like [Uptime], TestSource must not run in parallel.
func TestSource(t *testing.T, fixture func(*testing.T) Fixture) {
	for _, h := range hazards {
		t.Run(h.name, func(t *testing.T) {
			if problem := play(t, fixture(t), h.script); problem != "" {
				t.Error(problem)
			}
		})
	}
}

// hazards are scripts, with their numbers in gc/testdata/hazards.txt. web, web-again and the like are
// containers of pods, and /net1 is the second interface of one, in the second network if there is one.
var hazards = []struct{ name, script string }{
	{"Hazard02EveryContainer", "attach web, attach db, check"},
	{"Hazard06Empty", "attach web, detach web, check"},
	{"Hazard07Error", "attach web, break, error, repair, check"},
	{"Hazard08DualStack", "attach web-dual, check"},
	{"Hazard10Recreated", "attach web, attach db, detach db, attach web-again, detach web, check, attach web, check"}, // 105: a late DEL
	{"Hazard22SecondNetwork", "attach web, attach web/net1, check, detach web, check"},
	{"Hazard26LostStore", "attach web, lose, error"},
	{"Hazard49OtherRuntime", "attach web, check, attach nerdctl, check"},
	{"Hazard62OldList", "attach web, check, attach db, check or-old"},
	{"Hazard64EndedContext", "attach web, check, end"},
	{"Hazard64ReusedSlice", "attach web, check, attach db, detach web, check"},
	{"Hazard64WhileItChanges", "attach web, change db, check"},
	{"Hazard74OtherNetwork", "attach web, attach elsewhere, check"},
	{"Hazard111Reboot", "attach web, reboot, check, attach db, check"},
}

type attachment = podsource.Attachment

// A script is what happens on a node.
type script struct {
	Fixture
	t               testing.TB
	events          []string
	changed         time.Time // when the last event began
	attached, ended []attachment
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
	s := &script{Fixture: f, t: t}
	changes := map[string]bool{"attach": true, "detach": f.Detach != nil, "change": f.Detach != nil, "break": f.Break != nil && f.Repair != nil,
		"repair": true, "lose": f.Lose != nil, "reboot": f.Reboot != nil && boottime.Since() > 0}
	for step := range strings.SplitSeq(steps, ", ") {
		verb, of, _ := strings.Cut(step, " ")
		if has, ok := changes[verb]; ok && !has {
			t.Logf("this ends before %q: the fixture has no function for it", step)
			break
		} else if ok {
			s.events, s.changed = append(s.events, step), time.Now()
		}
		switch at := s.attachment(of); verb {
		case "attach":
			if of == "nerdctl" && s.answer.Names != podsource.AnyContainer {
				return s.problem
			}
			s.attached, s.ended = append(s.attached, at), slices.DeleteFunc(s.ended, same(at))
			f.Attach(at)
		case "detach":
			s.attached, s.ended = slices.DeleteFunc(s.attached, same(at)), append(s.ended, at)
			f.Detach(at)
		case "change":
			s.checkWhile(func() { f.Attach(at); f.Detach(at) })
		case "break":
			f.Break()
		case "repair":
			f.Repair()
		case "lose":
			f.Lose()
		case "reboot":
			s.uptime, s.ended, s.attached = boottime.Since(), s.attached, nil
			Uptime(t, s.uptime) // the source may know it, too
			f.Reboot()
		case "error":
			s.checkError()
		case "end":
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if a, err := s.ask(ended); err == nil && len(a.Pods) < len(s.answer.Pods) {
				s.fail("R2", fmt.Sprintf("returned %d of %d pods, and no error, after the end of its context", len(a.Pods), len(s.answer.Pods)), "return its error")
			}
		case "check":
			s.check(of == "or-old")
		}
	}
	return s.problem
}

// fail records, if it is the first problem, which rule the source broke, how, and what to do.
func (s *script) fail(rule, did, do string) {
	s.problem = cmp.Or(s.problem, fmt.Sprintf("%s: after %s the source %s.\n%s.\nAttached is %+v, and was %+v.",
		rule, strings.Join(s.events, ", "), did, do, s.attached, s.ended))
}

// network returns the first or the second network of the source, which may be the same.
func (s *script) network(i int) string {
	if podsource.Covers(s.Networks, podsource.EveryNetwork) {
		return []string{"podnet", "storage"}[i]
	}
	return s.Networks[min(i, len(s.Networks)-1)]
}

const elsewhere = "elsewhere" // a network of another CNI server, and a container in it

// attachment returns the attachment of a name.
func (s *script) attachment(name string) attachment {
	container, second := strings.CutSuffix(name, "/net1")
	at := attachment{Network: s.network(0), ContainerID: ContainerID(container), IfName: "eth0"}
	at.Pod.Namespace = "default"
	at.Pod.Name, _, _ = strings.Cut(container, "-")
	at.IPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 88, byte(len(name)), at.ContainerID[0]})}
	switch {
	case second:
		at.Network, at.IfName = s.network(1), "net1"
	case name == elsewhere:
		at.Network = elsewhere
	case name == "nerdctl":
		at.ContainerID = "default-" + at.ContainerID
	case strings.HasSuffix(name, "-dual"):
		at.IPs = append(at.IPs, netip.MustParseAddr("fd00:88::2"))
	}
	return at
}

func same(at attachment) func(attachment) bool {
	return func(b attachment) bool { return b.ContainerID == at.ContainerID && b.IfName == at.IfName }
}

func (s *script) ask(ctx context.Context) (podsource.Answer, error) {
	a, err := s.Source.Pods(ctx)
	all := append(a.Members(), a)
	if err == nil && len(all) != 2 {
		err = fmt.Errorf("its answer has %d parts: test each of the sources", len(all)-1)
	}
	return all[0], err
}

// check checks an answer, and passes with the source.
func (s *script) check(mayBeOld bool) {
	a, err := s.ask(s.t.Context())
	if text, _ := json.Marshal(s.answer); s.encoded != "" && s.encoded != string(text) {
		s.fail("R11", fmt.Sprintf("changed an answer that it had returned, from\n%s to\n%s", s.encoded, text), "Make new slices for each answer")
	}
	if err != nil {
		if len(s.attached) > 0 { // else it may not be sure that there is none
			s.fail("R2", fmt.Sprintf("returned an error: %v", err), "Return the list: beside an error nothing is released")
		}
		return
	}
	text, _ := json.Marshal(a)
	s.answer, s.encoded = a, string(text)
	record := a.Names == podsource.AnyContainer && a.AtOnce && a.Cache == nil && !a.Supplementary
	outside := func(network string) bool { return !podsource.Covers(s.Networks, network) }
	if slices.ContainsFunc(a.Networks, outside) || record && podsource.Covers(a.Networks, podsource.EveryNetwork) {
		s.fail("R14", fmt.Sprintf("speaks of the networks %q", a.Networks), "Name those of which it knows every container, "+
			"and for a record those in which the agent serves every ADD: live addresses of others are released")
	}
	for _, at := range s.attached {
		n, more := 0, false
		for _, p := range a.Pods {
			more = more || p.MoreIPs
			for _, ip := range p.IPs {
				n += len(at.IPs) - len(slices.DeleteFunc(slices.Clone(at.IPs), func(own netip.Addr) bool { return own == ip.Unmap().WithZone("") }))
			}
		}
		if n > 0 && n < len(at.IPs) && !more {
			s.fail("R2", fmt.Sprintf("lists only %d of the addresses %v", n, at.IPs), "List all of them, or set MoreIPs")
		}
	}
	switch {
	case a.Supplementary:
		none := Source{Declares: podsource.Answer{Names: podsource.AnyContainer, AtOnce: true, Authoritative: true}}
		s.pass("a pass beside a record that lists nothing", 10*time.Minute, mayBeOld, &none)
	case record:
		s.pass("the hook", time.Minute, mayBeOld)
		fallthrough
	default:
		s.pass("a pass", time.Hour, mayBeOld)
		starting := new(Source)
		starting.Set(podsource.Pod{UID: "starting"})
		s.pass("a pass beside a starting pod", time.Hour, mayBeOld, starting)
	}
}

// pass runs a pass over reservations of all attachments, age ago. It has to keep those of attached
// containers, and must not keep others because of what the source lists.
func (s *script) pass(name string, age time.Duration, mayBeOld bool, beside ...podsource.Source) {
	dir := NewDir(s.t)
	for i, at := range slices.Concat(s.ended, s.attached) {
		made := age
		if s.uptime > 0 && i < len(s.ended) {
			made += s.uptime
		}
		for _, ip := range at.IPs {
			dir.Reserve(at.Network, ip.String(), at.ContainerID, made)
		}
	}
	networks := slices.Compact([]string{s.network(0), s.network(1), elsewhere})
	reconciler, err := gc.New(dir.Store, networks, podsource.Union(append(beside, s.Source)...), gc.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	var report gc.Report
	if name == "the hook" {
		report, err = reconciler.AtStartup(s.t.Context(), gc.NoADDInFlight)
	} else {
		report, err = reconciler.Reconcile(s.t.Context())
	}
	old := !s.answer.AsOf.IsZero() && s.answer.AsOf.Before(s.changed)
	switch refused := errors.Is(err, gc.ErrNoPods) && len(s.attached) == 0 && !s.answer.Authoritative; {
	case err != nil && !refused: // by R9
		s.fail("R2", fmt.Sprintf("made %s fail: %v", name, err), "See the error")
	case err != nil || old && mayBeOld:
		return
	}
	for _, r := range report.Reservations {
		did := fmt.Sprintf("let %s decide that %s in %s, of the container %s, is %s: %s", name, r.IP, r.Network, r.ContainerID, r.Verdict, r.Reason)
		live := slices.ContainsFunc(s.attached, func(at attachment) bool { return at.ContainerID == r.ContainerID })
		unknown, meant := r.Reason == gc.NoSourceForNetwork, podsource.Covers(s.Networks, r.Network)
		switch kept := r.Verdict == gc.InUse || unknown && !meant; {
		case live && !kept && r.Verdict != gc.Starting && old:
			s.fail("R5", did+", by a list of "+s.answer.AsOf.String(), "Let the functions of the fixture wait for the next list")
		case live && !kept && r.Verdict != gc.Starting:
			s.fail("R2", did+", and it is attached", "List each live container by the ID of its CNI ADD, whole and without a scheme, or by all of its "+
				"addresses. If the list was not made for this question, set AsOf to when it was (hazard 62)")
		case !live && !old && (kept && meant || unknown && meant || r.Verdict == gc.Conflict || r.Reason == gc.StaleAnswer || name == "the hook" && s.uptime > 0 && r.Verdict != gc.Released):
			s.fail("R3", did+", and it has ended", "Forget an attachment with its DEL, or with the boot")
		}
	}
}

// checkError checks that the source returns an error. A supplementary one may declare nothing instead.
func (s *script) checkError() {
	a, err := s.ask(s.t.Context())
	nothing := a.Supplementary && (a.Names == podsource.KubernetesPods || a.Cache != nil) && len(a.SeesADDs) == 0 && !a.SeesAddresses
	if err == nil && !nothing {
		s.fail("R2", fmt.Sprintf("returned %d pods and no error", len(a.Pods)), "Return an error if the store can't be read or is not there, "+
			"and no list beside it: neither an empty one, nor a part, nor the last one")
	} else if errors.Is(err, podsource.ErrNotHere) && slices.Contains(s.events, "break") {
		s.fail("R2", fmt.Sprintf("returned the error %q", err), "Return ErrNotHere only if there is no such source on the node (hazard 41)")
	}
}

// checkWhile asks the source while its store changes.
func (s *script) checkWhile(change func()) {
	for range 16 {
		asked := make(chan error)
		go func() {
			a, err := s.ask(s.t.Context())
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
