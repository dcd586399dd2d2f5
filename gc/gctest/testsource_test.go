// SPDX-License-Identifier: Apache-2.0

package gctest_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A store is a node as a source sees it.
type store struct {
	mu  sync.Mutex // guards what follows
	all map[string]podsource.Attachment
	err error
}

func (s *store) list(context.Context) ([]podsource.Attachment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.all)), s.err
}

// pods returns a pod for each attachment, as the function changes it.
func (s *store) pods(change func(*podsource.Pod)) func(context.Context) ([]podsource.Pod, error) {
	return func(ctx context.Context) (pods []podsource.Pod, err error) {
		all, err := s.list(ctx)
		for _, at := range all {
			p := podsource.Pod{NamespacedName: at.Pod, ContainerIDs: []string{at.ContainerID}, IPs: at.IPs}
			change(&p)
			pods = append(pods, p)
		}
		return pods, err
	}
}

func (s *store) set(change func()) func() {
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		change()
	}
}

// fixture returns a fixture with a source of a store.
func fixture(networks []string, source func(*store) podsource.Source) func(*testing.T) gctest.Fixture {
	return func(*testing.T) gctest.Fixture {
		s := &store{all: make(map[string]podsource.Attachment)}
		return gctest.Fixture{
			Source: source(s), Networks: networks,
			Attach: func(at podsource.Attachment) {
				if podsource.Covers(networks, at.Network) {
					s.set(func() { s.all[at.ContainerID+at.IfName] = at })()
				}
			},
			Detach: func(at podsource.Attachment) { s.set(func() { delete(s.all, at.ContainerID+at.IfName) })() },
			Break:  s.set(func() { s.err = errors.New("can't read it") }),
			Repair: s.set(func() { s.err = nil }),
			Lose:   s.set(func() { s.all, s.err = nil, podsource.ErrIncomplete }),
			Reboot: s.set(func() { clear(s.all) }),
		}
	}
}

var some, every = []string{"podnet", "storage"}, []string{podsource.EveryNetwork}

var sources = map[string]func(*testing.T) gctest.Fixture{
	"example": stateFixture,
	"record":  fixture(some, func(s *store) podsource.Source { return podsource.Attachments(some, podsource.Always, s.list) }),
	"empty": fixture(some[:1], func(s *store) podsource.Source {
		return podsource.AllowEmpty(podsource.Attachments(some[:1], time.Now(), s.list))
	}),
	"sandboxes": fixture(every, func(s *store) podsource.Source {
		return podsource.Sandboxes(s.pods(func(p *podsource.Pod) { p.IPs = nil }))
	}),
	"pods": fixture(every, func(s *store) podsource.Source {
		return podsource.Func(s.pods(func(p *podsource.Pod) { p.ContainerIDs = nil }))
	}),
	"addresses": fixture(every, func(s *store) podsource.Source {
		return podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
			pods, err := s.pods(func(p *podsource.Pod) { *p = podsource.Pod{IPs: p.IPs} })(ctx)
			return podsource.Answer{Pods: pods, Supplementary: true, SeesAddresses: true}, err
		})
	}),
}

func TestSources(t *testing.T) {
	for name, source := range sources {
		t.Run(name, func(t *testing.T) { gctest.TestSource(t, source) })
	}
}

// faults are what a busy engineer may write, with the hazards that find it in the sources in which it may be. Others can't have
// it: plain pods and addresses have no container IDs, and only a record speaks of some networks or knows a boot from its store.
var faults = []struct {
	reason, hazards, in string
	plant               func(*gctest.Fixture)
}{
	{"an error is ignored", "07Error 26LostStore", all, answers(func(_ context.Context, _ *podsource.Answer, err *error) { *err = nil })},
	{"a file that can't be read does not exist", "07Error", all, answers(func(_ context.Context, _ *podsource.Answer, err *error) {
		if *err != nil {
			*err = podsource.ErrNotHere
		}
	})},
	{"an error is remembered", "07Error", all, func(f *gctest.Fixture) { f.Repair = func() {} }},
	{"a lost store is an empty one", "26LostStore", all, func(f *gctest.Fixture) { f.Lose = f.Reboot }},
	{"IDs are cut", "02EveryContainer", named, pods(func(p *podsource.Pod) { p.ContainerIDs[0] = p.ContainerIDs[0][:10] })},
	{"what is not ready counts as finished", "02EveryContainer", all, pods(func(p *podsource.Pod) { p.Finished = true })},
	{"only sandboxes are listed", "49OtherRuntime", records, declares(func(a *podsource.Answer) {
		a.Pods = slices.DeleteFunc(a.Pods, func(p podsource.Pod) bool { return len(p.ContainerIDs[0]) != 64 })
	})},
	{"the list is fetched once", "62OldList 10Recreated", all, cache(func() (none time.Time) { return })},
	{"all answers have one slice", "64ReusedSlice", all, func(f *gctest.Fixture) {
		var one []podsource.Pod
		declares(func(a *podsource.Answer) { one = append(one[:0], a.Pods...); a.Pods = one })(f)
	}},
	{"a loop ends with the context", "02EveryContainer", all, answers(func(ctx context.Context, a *podsource.Answer, _ *error) {
		if ctx.Err() != nil {
			a.Pods = nil
		}
	})},
	{"a change empties the store for a moment", "64WhileItChanges", "record", func(f *gctest.Fixture) {
		var moment atomic.Bool
		attach := f.Attach
		f.Attach = func(at podsource.Attachment) { attach(at); moment.Store(true) }
		declares(func(a *podsource.Answer) {
			if moment.Swap(false) {
				a.Pods = nil
			}
		})(f)
	}},
	{"attachments are stored by container", "22SecondNetwork", all, detachesAll(func(at podsource.Attachment) any { return at.ContainerID })},
	{"attachments are stored by pod", "10Recreated", all, detachesAll(func(at podsource.Attachment) any { return at.Pod })},
	{"the DEL is missed", "06Empty 10Recreated", all, func(f *gctest.Fixture) { f.Detach = func(podsource.Attachment) {} }},
	{"attachments are stored by network", "22SecondInterface", all,
		detachesAll(func(at podsource.Attachment) any { return at.ContainerID + at.Network })},
	{"attachments are stored by address", "09AddressIsUsedAgain", all, detachesAll(func(at podsource.Attachment) any { return at.IPs[0] })},
	{"only one network's containers are listed", "22SecondNetwork 74OtherNetwork", "sandboxes pods addresses",
		only(func(at podsource.Attachment) bool { return at.Network == "podnet" })},
	{"only pods with names are listed", "02EveryContainer", named, only(func(at podsource.Attachment) bool { return at.Pod.Name != "" })},
	{"only IPv4 addresses are listed", "02EveryContainer", all, only(func(at podsource.Attachment) bool { return at.IPs[0].Is4() })},
	{"only the first page is listed", "02EveryContainer", all, declares(func(a *podsource.Answer) { a.Pods = a.Pods[:min(3, len(a.Pods))] })},
	{"the list before the last one is returned", "10Recreated", all, func(f *gctest.Fixture) {
		var a podsource.Answer
		answers(func(_ context.Context, now *podsource.Answer, _ *error) { a, *now = *now, a })(f)
		_, _ = f.Source.Pods(context.Background())
	}},
	{"a record sees ADDs", "02EveryContainer", records, declares(func(a *podsource.Answer) { a.SeesADDs = some })},
	{"it speaks of every network", "74OtherNetwork", records, declares(func(a *podsource.Answer) { a.Networks = every })},
	{"it speaks of another network", "10Recreated", "example record", declares(func(a *podsource.Answer) { a.Networks = some[1:] })},
	{"its date is in the future", "10Recreated", "example record",
		declares(func(a *podsource.Answer) { a.AsOf = time.Now().Round(0).Add(time.Hour) })},
	{"its gap has no beginning", "111Reboot", records, declares(func(a *podsource.Answer) { a.Gaps = []podsource.Gap{{To: time.Now()}} })},
	{"the store outlives the boot", "111Reboot", records, func(f *gctest.Fixture) { f.Reboot = func() {} }},
}

const records, named, all = "example record empty", "example record empty sandboxes", "example record empty sandboxes pods addresses"

func answers(change func(context.Context, *podsource.Answer, *error)) func(*gctest.Fixture) {
	return func(f *gctest.Fixture) {
		source := f.Source
		f.Source = podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
			a, err := source.Pods(ctx)
			change(ctx, &a, &err)
			return a, err
		})
	}
}

func declares(change func(*podsource.Answer)) func(*gctest.Fixture) {
	return answers(func(_ context.Context, a *podsource.Answer, _ *error) { change(a) })
}

func pods(change func(*podsource.Pod)) func(*gctest.Fixture) {
	return declares(func(a *podsource.Answer) {
		for i := range a.Pods {
			change(&a.Pods[i])
		}
	})
}

func cache(asOf func() time.Time) func(*gctest.Fixture) {
	return func(f *gctest.Fixture) {
		source := f.Source
		first := sync.OnceValues(func() (podsource.Answer, error) { return source.Pods(context.Background()) })
		f.Source = podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
			a, err := first()
			a.AsOf = asOf()
			return a, err
		})
	}
}

func only(has func(podsource.Attachment) bool) func(*gctest.Fixture) {
	return func(f *gctest.Fixture) {
		attach := f.Attach
		f.Attach = func(at podsource.Attachment) {
			if has(at) {
				attach(at)
			}
		}
	}
}

func detachesAll(key func(podsource.Attachment) any) func(*gctest.Fixture) {
	return func(f *gctest.Fixture) {
		var made []podsource.Attachment
		attach, detach := f.Attach, f.Detach
		f.Attach = func(at podsource.Attachment) { made = append(made, at); attach(at) }
		f.Detach = func(at podsource.Attachment) {
			for _, b := range made {
				if key(at) == key(b) {
					detach(b)
				}
			}
		}
	}
}

// A fixture without a function leaves out what needs it, and one without a source or networks is an error.
func TestFixtures(t *testing.T) {
	for _, row := range []struct {
		reason, hazard string
		change         func(*gctest.Fixture)
		fails          bool
	}{
		{"no source", "Hazard", func(f *gctest.Fixture) { f.Source = nil }, true},
		{"no networks", "Hazard", func(f *gctest.Fixture) { f.Networks = nil }, true},
		{"no Attach", "Hazard", func(f *gctest.Fixture) { f.Attach = nil }, true},
		{"a union", "Hazard", func(f *gctest.Fixture) { f.Source = podsource.Union(f.Source, f.Source) }, true},
		{"an old list that says so", "62OldList", cache(sync.OnceValue(time.Now)), false}, // after the first Attach
		{"Attach alone", "Hazard", func(f *gctest.Fixture) { f.Detach, f.Break, f.Lose, f.Reboot = nil, nil, nil, nil }, false},
	} {
		t.Run(row.reason, func(t *testing.T) {
			problem := gctest.Problem(t, func(t *testing.T) gctest.Fixture {
				f := sources["record"](t)
				row.change(&f)
				return f
			}, row.hazard)
			if (problem != "") != row.fails {
				t.Errorf("the problem is %q", problem)
			}
		})
	}
}

func TestFaultsAreFound(t *testing.T) {
	for _, fault := range faults {
		for in := range strings.FieldsSeq(fault.in) {
			t.Run(fault.reason+"/"+in, func(t *testing.T) {
				for hazard := range strings.FieldsSeq(fault.hazards) {
					problem := gctest.Problem(t, func(t *testing.T) gctest.Fixture {
						f := sources[in](t)
						fault.plant(&f)
						return f
					}, hazard)
					if t.Log(problem); problem == "" {
						t.Errorf("hazard %s does not find it", hazard)
					}
				}
			})
		}
	}
}
