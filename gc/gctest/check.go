// SPDX-License-Identifier: Apache-2.0

package gctest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// Check fails the test unless a report has no error and exactly these reservations, in any order. Each is an address, a verdict
// and, where that matters, a reason, as "10.0.0.2 released" or "10.0.0.2 young too-young". If the reconciler has several networks,
// and for an address in a network that is not its own, the network is before the address, as in "podnet/10.0.0.2".
func Check(t testing.TB, report gc.Report, want ...string) {
	t.Helper()
	if report.Err != nil || report.Started.IsZero() {
		t.Errorf("the pass returned an error, or did not begin: %v", report.Err)
	}
	var got []string
	for _, e := range report.Reservations {
		line := e.IP.String() + " " + e.Verdict.String()
		if len(report.Networks) != 1 || e.Network != report.Networks[0] {
			line = e.Network + "/" + line
		}
		if !slices.Contains(want, line) {
			line += " " + e.Reason.String()
		}
		got = append(got, line)
	}
	want = slices.Sorted(slices.Values(want))
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
		t.Errorf("reservations (-want +got):\n%s", diff)
	}
}
