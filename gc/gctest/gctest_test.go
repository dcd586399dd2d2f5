// SPDX-License-Identifier: Apache-2.0

package gctest_test

import (
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// What leaked goes, what lives stays, and so does what may be of a pod that is starting.
func TestLeakedGoesLiveStaysStartingStays(t *testing.T) {
	dir := gctest.NewDir(t)
	dir.Reserve("podnet", "10.0.0.2", gctest.ContainerID("leaked"), time.Hour)
	dir.Reserve("podnet", "10.0.0.3", gctest.ContainerID("live"), time.Hour)
	dir.Reserve("podnet", "10.0.0.4", gctest.ContainerID("starting"), 20*time.Minute)
	var source gctest.Source
	source.Set(
		podsource.Pod{UID: "1", ContainerIDs: []string{gctest.ContainerID("live")}},
		podsource.Pod{UID: "2", StartedAt: time.Now().Add(-30 * time.Minute)}) // it is starting: neither container nor address
	reconciler, err := gc.New(dir.Store, []string{"podnet"}, &source, gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := reconciler.AtStartup(t.Context())
	if err != nil {
		t.Error(err)
	}
	gctest.Check(t, report, "10.0.0.2 released", "10.0.0.3 in-use", "10.0.0.4 starting")
}
