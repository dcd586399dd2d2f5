// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// An agent that serves its ADDs has an empty store, a full pool and a pod that is stuck: what is
// from before the boot is released in the hook, what is of this boot is kept, unless the caller says
// that the store may be empty.
func TestHazard111EmptyStore(t *testing.T) {
	empty := podsource.Attachments([]string{network1}, podsource.Always, func(context.Context) ([]podsource.Attachment, error) { return nil, nil })
	stuck := answers(kubeletAnswer(starts()))
	for _, c := range []struct {
		source podsource.Source
		want   Verdict // of what is of this boot
	}{{empty, Foreign}, {podsource.AllowEmpty(empty), Released}} {
		n := newNode(t)
		up := boottime.Since()
		n.reserve("10.0.0.2", hex64("before"), up+time.Hour)
		n.reserve("10.0.0.3", hex64("since"), up/2)
		r := newReconciler(t, n.store, []string{network1}, c.source, Options{}, &clocks{uptime: up})
		report := n.atStartup(r, NoADDInFlight)
		n.check(report, map[string]Verdict{"10.0.0.2": Released, "10.0.0.3": c.want})
	}
	// Beside kubelet the stuck pod claims nothing that the store would name.
	n := newNode(t)
	n.reserve("10.0.0.2", hex64("before"), boottime.Since()+time.Hour)
	r := newReconciler(t, n.store, []string{network1}, podsource.Union(empty, stuck), Options{}, &clocks{uptime: boottime.Since()})
	report := n.atStartup(r, NoADDInFlight)
	n.check(report, map[string]Verdict{"10.0.0.2": Released})
}
