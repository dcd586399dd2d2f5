// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// lines are an agent's log at the default verbosity.
type logged []string

// with returns the lines that contain a text.
func (l logged) with(text string) (found logged) {
	for _, line := range l {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// logging makes an agent whose passes log to the returned lines.
func logging(t *testing.T, dir string, dryRun bool, list func(context.Context) ([]podsource.Pod, error)) (*Agent, *logged) {
	t.Helper()
	var l logged
	log := funcr.New(func(_, line string) { l = append(l, line) }, funcr.Options{Verbosity: 1})
	conf := filepath.Join(t.TempDir(), "n.conf")
	cnitest.Write(t, conf, `{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":{"type":"host-local","subnet":"10.0.0.0/16"}}`, 0)
	a, err := New(Options{DataDir: dir, Networks: []string{"n"}, CNIConf: []string{conf}, Source: podsource.Func(list), Passes: gc.Options{DryRun: dryRun, Logger: log}})
	if err != nil {
		t.Fatal(err)
	}
	return a, &l
}

// leaks makes a data directory with n leaks of an hour ago, and one in a network that is only read.
func leaks(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	cnitest.Reserve(t, dir, "n", "10.0.0.2", sandbox("live"), time.Hour)
	cnitest.Reserve(t, dir, "other", "10.1.0.2", sandbox("leaked"), time.Hour)
	for i := range n {
		cnitest.Reserve(t, dir, "n", fmt.Sprintf("10.0.1.%d", i+1), sandbox("leaked"), time.Hour)
	}
	return dir
}

func livePod(ips ...netip.Addr) []podsource.Pod {
	return []podsource.Pod{{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}, ContainerIDs: []string{sandbox("live")}, IPs: ips}}
}

// Each pass logs a summary, at V(1) if it has no news. Only a dry run adds a line with what it would
// have released.
func TestLogOfPass(t *testing.T) {
	for _, row := range []struct {
		reason   string
		dryRun   bool
		leaks    int
		released int
		want     []string // in the line of a dry run
	}{
		{"what leaked is released, a line each", false, 3, 3, nil},
		{"those of a large node have not", false, 53, 50, nil},
		{"a dry run releases nothing", true, 3, 0, []string{`"count"=3`, `"IPs"=["n/10.0.1.1" "n/10.0.1.2" "n/10.0.1.3"]`}},
		{"more than a line takes", true, maxLogged + 2, 0, []string{`"count"=66`, `"and 2 more"]`}},
		{"nothing leaked but in a network that is only read", true, 0, 0, nil},
	} {
		a, l := logging(t, leaks(t, row.leaks), row.dryRun, func(context.Context) ([]podsource.Pod, error) { return livePod(), nil })
		if _, err := a.reconciler.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(l.with("Compared reservations with live pods")); n != 1 {
			t.Errorf("%s: %d summaries", row.reason, n)
		}
		if n := len(l.with("Released a leaked reservation")); n != row.released {
			t.Errorf("%s: %d releases", row.reason, n)
		}
		if counted := len(l.with(`"Released more leaked reservations" "count"=3`)) == 1; counted != (row.released < row.leaks && !row.dryRun) {
			t.Errorf("%s: it is not %t that a line counts the others", row.reason, !counted)
		}
		if !row.dryRun { // the line belongs to dry runs only
			a.log(&gc.Report{Reservations: []gc.Entry{entry("10.0.1.9", "leaked", gc.NotTried)}})
		}
		would := l.with("Would have released")
		if len(would) != min(1, len(row.want)) {
			t.Errorf("%s: %q", row.reason, would)
			continue
		}
		for _, text := range row.want {
			if !strings.Contains(would[0], text) {
				t.Errorf("%s: %q is not in %s", row.reason, text, would[0])
			}
		}
	}
}

// Findings are logged when they change, not in each pass. A refused pass ends none, but reports a
// source that has never answered.
func TestLogOfFindings(t *testing.T) {
	var pods []podsource.Pod
	var away error
	a, l := logging(t, leaks(t, 0), false, func(context.Context) ([]podsource.Pod, error) { return pods, away })
	hook := errors.New("not up yet")
	const (
		finding = `"A person should look at this node" "findings"="`
		lost    = `UNRESERVED: 1 address of a live pod is not reserved, so host-local may hand it out again; `
		other   = `LEAKED: other: 1 address without an owner that these sources know, in a network that is not named"`
	)
	for _, row := range []struct {
		reason string
		pods   []podsource.Pod
		err    error
		want   logged
	}{
		{"a source does not answer before the hook has ended", nil, hook, nil},
		{"a source does not answer", nil, errors.New("no such socket"), logged{finding + `UNKNOWN: no answer since the start: source 1"`}},
		{"nor does it later", nil, errors.New("no such socket"), nil},
		{"it does, and finds a leak that no pass releases", livePod(), nil, logged{finding + other}},
		{"an address is not in host-local's range, so another plugin gave it", livePod(netip.MustParseAddr("192.0.2.9")), nil, nil},
		{"an address is not reserved", livePod(netip.MustParseAddr("10.0.0.9")), nil, logged{finding + lost + other}},
		{"it is not yet", livePod(netip.MustParseAddr("10.0.0.9")), nil, nil},
		{"a refused pass does not repeat it", nil, errors.New("no such socket"), nil},
		{"nor does the next one", livePod(netip.MustParseAddr("10.0.0.9")), nil, nil},
		{"it is", livePod(), nil, logged{finding + other}},
		{"it is lost again", livePod(netip.MustParseAddr("10.0.0.9")), nil, logged{finding + lost + other}},
	} {
		*l, pods, away = nil, row.pods, row.err
		if !errors.Is(away, hook) {
			a.statuses.hookEnded()
		}
		_, _ = a.reconciler.Reconcile(t.Context()) // the error is the row's
		var got logged
		for _, line := range l.with("A person should look") {
			got = append(got, strings.TrimPrefix(line, `"level"=0 "msg"=`))
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
	away = errors.New("no such socket")
	_, _ = a.reconciler.Reconcile(t.Context())
	got := get(a, "/metrics").Body.String()
	for _, of := range []string{`network="",word="UNKNOWN"`, `network="",word="UNRESERVED"`, `network="other",word="LEAKED"`} {
		if !strings.Contains(got, "\nhostlocal_gc_findings{"+of+"} 1\n") {
			t.Errorf("after a refused pass there is no metric of %s:\n%s", of, got)
		}
	}
}
