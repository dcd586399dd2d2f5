// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A dataDir is what a pass reads and changes: a [hostlocal.Store].
type dataDir interface {
	List(context.Context) (hostlocal.Listing, error)
	Release(context.Context, ...*hostlocal.Reservation) (hostlocal.ReleaseResult, error)
}

// A diskContext is the context of an access to the disk, which ends when nobody waits for it
// any more.
type diskContext struct {
	context.Context
	givenUp atomic.Bool
}

func (c *diskContext) Err() error {
	if err := c.Context.Err(); err != nil || !c.givenUp.Load() {
		return err
	}
	return context.DeadlineExceeded
}

// returnTime is how long an access to the disk may take to return after its context has ended.
const returnTime = time.Second

// onDisk calls do, which accesses the disk, and waits no longer than Options.SourceTimeout, as
// for a source (R13). If the file system does not answer by then, or soon after ctx has ended,
// the call is left behind; its context has ended, so it releases nothing when it comes back.
// Until then onDisk does nothing but return an error: at most one thread is stuck.
func onDisk[T any](ctx context.Context, r *Reconciler, do func(context.Context) (T, error)) (result T, err error) {
	now := time.Now()
	if since := r.onDisk.Load(); since != nil {
		return result, fmt.Errorf("the file system has not answered since %s; is the disk or its mount gone?", since.Format(time.RFC3339))
	}
	r.onDisk.Store(&now)
	c := &diskContext{Context: ctx}
	type outcome struct {
		result T
		err    error
	}
	done, ended := make(chan outcome, 1), ctx.Done()
	go func() {
		var o outcome
		o.err = recoverPanic("an access to the disk", func() (err error) {
			o.result, err = do(c)
			return err
		})
		r.onDisk.Store(nil)
		done <- o
	}()
	select {
	case o := <-done:
		return o.result, o.err
	case <-time.After(r.opts.SourceTimeout):
	case <-ended:
		select {
		case o := <-done:
			return o.result, o.err
		case <-time.After(returnTime):
		}
	}
	c.givenUp.Store(true)
	waited := time.Since(now).Round(time.Millisecond)
	return result, fmt.Errorf("the file system did not answer within %v; is the disk or its mount gone?", waited)
}
