// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Arguments that are wrong are errors of the constructor, not of later passes.
func TestHazard44ConstructorRefuses(t *testing.T) {
	store, source := hostlocal.New(t.TempDir()), podsource.Static{other}
	some := []string{network1}
	for _, c := range []struct {
		reason   string
		store    *hostlocal.Store
		networks []string
		source   podsource.Source
		opts     Options
		want     string // in the error; empty: none
	}{
		{"valid arguments", store, some, source, Options{}, ""},
		{"no store", nil, some, source, Options{}, "no store"},
		{"no source", store, some, nil, Options{}, "no pod source"},
		{"no networks", store, nil, source, Options{}, "no network"},
		{"an empty name", store, []string{""}, source, Options{}, `""`},
		{"all networks, and one by its name", store, []string{"*", "a"}, source, Options{}, `"*" must be the only network`},
		{"a network twice", store, []string{"a", "b", "a"}, source, Options{}, "network a is named twice"},
		{"seconds written as nanoseconds", store, some, source, Options{MinAge: 300}, "MinAge is 300ns"},
		{"a nanosecond less than a second", store, some, source, Options{MinAge: time.Second - 1}, "MinAge"},
		{"a second", store, some, source, Options{MinAge: time.Second}, ""},
		{"longer than any clock", store, some, source, Options{MinAge: math.MaxInt64}, "MinAge"},
		{"StartingFor below 2 T + 10 min", store, some, source, Options{StartingFor: 14*time.Minute - 1}, "StartingFor is 13m59.999999999s; it must be from 14m0s"},
		{"the minimum of a longer T", store, some, source, Options{RuntimeRequestTimeout: 5 * time.Minute, StartingFor: 14 * time.Minute}, "StartingFor"},
		{"T in seconds", store, some, source, Options{RuntimeRequestTimeout: 120}, "RuntimeRequestTimeout is 120ns"},
		{"a time for sources in seconds", store, some, source, Options{SourceTimeout: 15}, "SourceTimeout"},
		{"a negative time for the hook", store, some, source, Options{StartupTimeout: -1}, "StartupTimeout"},
		{"an interval of more than a day", store, some, source, Options{Interval: 24*time.Hour + 1}, "Interval"},
		{"of a day", store, some, source, Options{Interval: 24 * time.Hour}, ""},
		{"a busy loop", store, some, source, Options{Interval: time.Second - 1}, "Interval"},
		{"an empty prefix", store, some, source, Options{AllowForeign: []string{"default-", ""}}, "AllowForeign"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			r, err := New(c.store, c.networks, c.source, c.opts)
			switch {
			case c.want == "" && (err != nil || r == nil):
				t.Errorf("got error %v", err)
			case c.want != "" && (err == nil || r != nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got error %v, want one that says %q", err, c.want)
			}
		})
	}
	_, err := New(nil, nil, nil, Options{MinAge: -1, Interval: -1})
	for _, want := range []string{"store", "source", "network", "MinAge", "Interval"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want every error in it, also %s", err, want)
		}
	}
}

// The zero Options are what the documentation says.
func TestDefaults(t *testing.T) {
	opts, err := Options{}.withDefaults()
	must(t, err)
	if opts.RuntimeRequestTimeout != 2*time.Minute || opts.MinAge != 7*time.Minute || opts.StartingFor != 14*time.Minute ||
		opts.SourceTimeout != 15*time.Second || opts.StartupTimeout != 30*time.Second || opts.Interval != 10*time.Minute {
		t.Errorf("got %+v", opts)
	}
	if opts.lag() != 7*time.Minute {
		t.Errorf("L is %v", opts.lag())
	}
	if opts, err = (Options{RuntimeRequestTimeout: 4 * time.Minute}).withDefaults(); err != nil || opts.MinAge != 11*time.Minute || opts.StartingFor != 18*time.Minute {
		t.Errorf("with a T of 4 minutes: %+v, error %v", opts, err)
	}
	// New does not sort the caller's slice.
	networks := []string{"b", "a"}
	if _, err := New(hostlocal.New(""), networks, podsource.Static{}, Options{}); err != nil || networks[0] != "b" {
		t.Errorf("New left the caller's networks as %v (error %v)", networks, err)
	}
}
