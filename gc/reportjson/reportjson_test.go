// SPDX-License-Identifier: Apache-2.0

package reportjson_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/reportjson"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// The JSON is stable.
func TestReport(t *testing.T) {
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	reservation := func(ip, id, ifName string) *hostlocal.Reservation {
		return &hostlocal.Reservation{Network: "podnet", IP: netip.MustParseAddr(ip), ContainerID: id, IfName: ifName, ReservedAt: start, Owner: hostlocal.Owned}
	}
	unreadable := &hostlocal.Reservation{Network: "second", IP: netip.MustParseAddr("10.9.0.3"), Owner: hostlocal.Unreadable, Err: errors.New("input/output error")}
	web := &gc.Pod{Namespace: "default", Name: "web", UID: "1", Source: "kubelet"}
	report := gc.Report{
		DataDir: "/data", Networks: []string{"podnet", "typo"}, Missing: []string{"typo"}, Started: start,
		Duration: 1500 * time.Millisecond, LockHeld: 2 * time.Millisecond, LongestHold: time.Millisecond,
		NextCheck: start.Add(time.Minute), Looks: 2,
		Sources:    []gc.SourceReport{{Name: "kubelet", Entries: 3, AsOf: start, Took: time.Millisecond}, {Name: "cri", Error: "away"}},
		Duplicates: []gc.Claim{{IP: netip.MustParseAddr("10.0.0.2"), Pods: []*gc.Pod{web, {Source: "netns", Origin: "process 1", NotRunning: true}}}},
		Unreserved: []gc.Claim{{IP: netip.MustParseAddr("10.0.0.9"), Pods: []*gc.Pod{web}}},
		Reservations: []gc.Entry{
			{Reservation: reservation("10.0.0.2", "c", "eth0"), Verdict: gc.InUse, Reason: gc.ContainerLive, Pod: web},
			{Reservation: reservation("fd00::3", "d", ""), Verdict: gc.Released, Reason: gc.ReleasedLeak},
			{Reservation: unreadable, Verdict: gc.Failed, Reason: gc.OwnerUnreadable},
		},
		Err: errors.New("one file could not be read"),
	}
	cause := func(e *gc.Entry) string { return map[gc.Verdict]string{gc.Released: "reboot"}[e.Verdict] }
	want, err := os.ReadFile("testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := (reportjson.Report{Report: &report, Cause: cause}).Write(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("testdata/report.json (-want +got):\n%s", diff)
	}
	report.Looks = 0
	unasked, err := json.Marshal(reportjson.Report{Report: &report, Cause: cause, Findings: []int{7}})
	for word, has := range map[string]bool{`"verdict"`: false, `"cause"`: false, `"counts"`: false, `"findings":[7]`: true, `"containerID":"d"`: true} {
		if err != nil || strings.Contains(string(unasked), word) != has {
			t.Errorf("no source was asked, and has %s is not %v (error %v):\n%s", word, has, err, unasked)
		}
	}
	empty, err := json.Marshal(reportjson.Report{Report: &gc.Report{}})
	if err != nil || strings.Contains(string(empty), "null") || strings.Contains(string(empty), `"error"`) {
		t.Errorf("got %s and error %v, want nothing that is null", empty, err)
	}
}
