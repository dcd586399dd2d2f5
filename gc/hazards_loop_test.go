// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package gc

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A panic of OnReport or of the context is an error of the pass.
func TestHazard64PanicInAPass(t *testing.T) {
	n := newNode(t)
	r := n.reconciler(podsource.Static{other}, Options{OnReport: func(Report, error) { panic("no") }})
	for range 2 { // the next pass is not blocked
		if _, err := r.Reconcile(t.Context()); err == nil || !strings.Contains(err.Error(), "panicked: no") {
			t.Errorf("got error %v, want the panic", err)
		}
	}
	n.reserve("10.0.0.2", "leaked", old)
	ctx := newCallbackContext(t)
	asked := 0
	ctx.onCheck(func() { // in the listing, after the wait for another pass
		if asked++; asked == 3 {
			panic("in the context")
		}
	})
	if _, err := n.reconciler(podsource.Static{other}, Options{}).Reconcile(ctx); err == nil || !strings.Contains(err.Error(), "panicked: in the context") {
		t.Errorf("got error %v, want the panic", err)
	}
	if r.NeedLeaderElection() {
		t.Error("only the leader would release")
	}
}

// A panic of the logger, in a pass or between passes, ends neither the hook nor the loop.
func TestHazard64LoggerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.reserve("10.0.0.2", "leaked", old)
		logger := funcr.New(func(string, string) { panic("in the logger") }, funcr.Options{Verbosity: 4})
		asked := 0
		r := n.reconciler(podsource.Func(func(context.Context) ([]podsource.Pod, error) {
			asked++
			return nil, nil
		}), Options{Logger: logger})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := r.Start(ctx); err != nil || asked < 10 {
			t.Errorf("asked %d times, error %v", asked, err)
		}
	})
}
