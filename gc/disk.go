// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
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

// returnTime is how long an access to the disk may take to return after its context has ended.
const returnTime = time.Second

// onDisk calls do, which accesses the disk, and waits no longer than Options.SourceTimeout, as
// for a source (R13). Then the context of the call ends. If the call does not return soon
// after that, or after ctx has ended, it is left behind: it releases nothing when it comes back.
// Until then onDisk does nothing but return an error: at most one thread is stuck. The time in
// busy is since when a call is under way.
func onDisk[T any](ctx context.Context, busy *atomic.Pointer[time.Time], opts *Options, do func(context.Context) (T, error)) (result T, err error) {
	now := time.Now()
	if since := busy.Load(); since != nil {
		return result, fmt.Errorf("the file system has not answered since %s; is the disk or its mount gone?", since.Format(time.RFC3339))
	}
	limit, cancel := context.WithTimeout(ctx, opts.SourceTimeout) // the caller's context may panic
	defer cancel()
	busy.Store(&now)
	type outcome struct {
		result T
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		o := outcome{err: errors.New("an access to the disk ended its goroutine")}
		defer func() {
			busy.Store(nil)
			done <- o
		}()
		o.err = recoverPanic("an access to the disk", func() (err error) {
			o.result, err = do(limit)
			return err
		})
	}()
	select {
	case o := <-done:
		return o.result, o.err
	case <-limit.Done():
	}
	select {
	case o := <-done:
		return o.result, o.err
	case <-time.After(returnTime):
	}
	return result, fmt.Errorf("the file system did not answer within %v; is the disk or its mount gone?", time.Since(now).Round(time.Millisecond))
}
