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
	// sandbox, a cache has fetched the list, and the start of a pod without an address is unknown or an hour ago. One in none of
	// Networks is that of another CNI server, and may be ignored.
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
// that lists no attachment yet, and lets something happen on the node. Then passes of a [gc.Reconciler] with its answers
// must keep the reservations of every attached container, and release those of the others if the answer declares what that
// takes: see [podsource.Answer]. The error of a subtest says which rule the source broke, how, and what to do. Under the race
// detector, a source that reads its store while that changes fails, too. Like [Uptime], TestSource must not run in parallel.
func TestSource(t *testing.T, fixture func(*testing.T) Fixture) {
	Uptime(t, 365*24*time.Hour)
	for _, h := range hazards {
		t.Run(h.name, func(t *testing.T) {
			if problem := play(t, fixture(t), h.script); problem != "" {
				t.Error(problem)
			}
		})
	}
}

// hazards are scripts, by their numbers in gc/testdata/hazards.txt. /net1 is another interface, in another network if there are two,
// and /eth1 one in the same; heir gets web's address; bare has no pod, v6 no IPv4 address, and is in kube-system.
var hazards = []struct{ name, script string }{
	{"Hazard02EveryContainer", "attach web, check, attach db, attach queue, attach mail, attach v6, attach bare, check"},
	{"Hazard06Empty", "attach web, detach web, check"},
	{"Hazard07Error", "attach web, break, error, repair, check"},
	{"Hazard09AddressIsUsedAgain", "attach web, attach heir, detach web, check"},
	{"Hazard10Recreated", "attach web, attach db, detach db, attach web-again, detach web, check, attach web, check"}, // 105: a late DEL
	{"Hazard22SecondNetwork", "attach web, attach web/net1, check, detach web, check, detach web, check"},
	{"Hazard22SecondInterface", "attach web, attach web/eth1, detach web/eth1, check, attach web, attach db, detach web, check"},
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
	networks        []string         // two of the source's, which may be the same, and another
	union           podsource.Source // of Source alone
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
	s := &script{Fixture: f, t: t, union: podsource.Union(f.Source)}
	s.networks = []string{f.Networks[0], f.Networks[len(f.Networks)-1], "elsewhere"}
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
				asked := make(chan string)
				go func() {
					a, err := s.ask(t.Context())
					text, web := encode(a), s.attached[0]
					listed := func(as string) bool { return strings.Contains(text, `"`+as+`"`) }
					if err != nil || slices.ContainsFunc([]string{web.ContainerID, web.IPs[0].String(), web.Pod.Name}, listed) {
						text = ""
					}
					asked <- text
				}()
				f.Attach(at)
				f.Detach(at)
				if text := <-asked; text != "" {
					s.fail("R2", "listed only "+text+" while the store changed", "Change the list or the file as a whole")
				}
			}
		case "error":
			a, err := s.ask(t.Context())
			declares := a.Cache == nil && a.Names != podsource.KubernetesPods || len(a.SeesADDs) > 0 || a.SeesAddresses || !a.Supplementary
			if err == nil && declares && (a.AsOf.IsZero() || a.AsOf.After(s.changed)) {
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
	case second == "net1":
		at.Network = s.networks[1]
	case name == "heir":
		at.IPs = s.attachment("web").IPs
	case name == "v6":
		at.Pod.Namespace, at.IPs = "kube-system", []netip.Addr{netip.MustParseAddr("fd00:88::6")}
	case name == "bare" && s.answer.Names != podsource.KubernetesPods:
		at.Pod.Namespace, at.Pod.Name = "", ""
	case name == "elsewhere":
		at.Network = name
	case name == "nerdctl" && s.answer.Names == podsource.AnyContainer:
		at.ContainerID = "default-" + at.ContainerID
	}
	return at
}

// fail records, for the first problem, which rule the source broke, how, and what to do.
func (s *script) fail(rule, did, do string) {
	s.problem = cmp.Or(s.problem, fmt.Sprintf("%s: after %q the source %s.\n%s.\nAttached now: %+v; ended: %+v.",
		rule, strings.Join(s.events, ", "), did, do, s.attached, s.ended))
}

// ask asks the source, which may panic, end its goroutine or hang.
func (s *script) ask(ctx context.Context) (podsource.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	a, err := s.union.Pods(ctx)
	if len(a.Parts) == 1 {
		a = a.Parts[0]
	}
	return a, cmp.Or(a.Err, err)
}

func encode(a podsource.Answer) string {
	text, err := json.Marshal(a)
	return string(text) + fmt.Sprint(err)
}

// check checks an answer, and passes with the source.
func (s *script) check(mayBeOld bool) {
	a, err := s.ask(s.t.Context())
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
	if slices.ContainsFunc(a.Networks, outside) || record && podsource.Covers(a.Networks, podsource.EveryNetwork) || a.Parts != nil ||
		!a.Supplementary && (len(a.SeesADDs) > 0 || a.SeesAddresses) {
		s.fail("R14", fmt.Sprintf("speaks of the networks %q, and sees ADDs in %q", a.Networks, a.SeesADDs), "Name those of which it knows "+
			"every container, and for a record those in which the agent serves every ADD. Only a Supplementary source of its own sees ADDs "+
			"or addresses. Test the sources of a union one by one")
	}
	first := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) { return a, nil })
	none := &Source{Declares: podsource.Answer{Names: podsource.AnyContainer, AtOnce: true, Authoritative: true}}
	switch {
	case mayBeOld && !a.AsOf.IsZero() && a.AsOf.Before(s.changed):
	case a.Supplementary:
		s.pass("a pass beside a record that lists nothing", 10*time.Minute, first, none)
	default:
		s.pass("a pass", time.Hour, first)
		if record && s.problem == "" && (a.Authoritative || len(a.Pods) > 0) { // else the hook waits
			s.pass("the hook with NoADDInFlight", time.Minute, s.Source)
		}
	}
}

// pass runs a pass over reservations that are age old. It must keep those of attached containers, and may release the others.
func (s *script) pass(name string, age time.Duration, sources ...podsource.Source) {
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
	reconciler, err := gc.New(dir.Store, slices.Compact(slices.Clone(s.networks)), podsource.Union(sources...), gc.Options{})
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
		names := a.Supplementary || a.Names.Has(r.ContainerID) || !starting
		enough := names && s.uptime == 0 && len(a.Gaps) == 0 && a.AsOf.IsZero() || s.uptime > 0 && hook // no record has a gap before the boot
		switch live := slices.ContainsFunc(s.attached, func(at podsource.Attachment) bool { return at.ContainerID == r.ContainerID }); {
		case live && (len(s.ended) > 0 || !over) && (r.Verdict == gc.InUse || starting || noSource && !podsource.Covers(s.Networks, r.Network)):
		case live:
			s.fail("R2", did+", and it is live", "List each container as live until the last DEL, by the ID of its CNI ADD, whole and without "+
				"a scheme, or by all its addresses. If the list is older, set AsOf, and let the functions of the fixture wait for the next one")
		case !live && !over && r.Verdict != gc.Released && (enough || r.Verdict == gc.InUse || r.Reason == gc.StaleAnswer):
			s.fail("R3", did+", and it has ended", "Forget an attachment with its DEL, or with the boot, and speak of all of the Networks")
		}
	}
}
