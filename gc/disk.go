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
func onDisk[T any](ctx context.Context, busy *atomic.Pointer[time.Time], opts *Options, do func(context.Context) (T, error)) (T, error) {
	var result, none T
	var err error
	now := time.Now()
	if since := busy.Load(); since != nil {
		return none, fmt.Errorf("the file system has not answered since %s; is the disk or its mount gone?", since.Format(time.RFC3339))
	}
	limit, cancel := context.WithTimeout(ctx, opts.SourceTimeout) // the caller's context may panic
	defer cancel()
	busy.Store(&now)
	done := make(chan struct{}) // until it is closed, result and err are the goroutine's
	go func() {
		defer close(done)
		defer busy.Store(nil)
		err = errors.New("an access to the disk ended early")
		defer recoverPanic("an access to the disk", &err)
		result, err = do(limit)
	}()
	select {
	case <-done:
		return result, err
	case <-limit.Done():
	}
	select {
	case <-done:
		return result, err
	case <-time.After(returnTime):
	}
	took := time.Since(now).Round(time.Millisecond)
	return none, fmt.Errorf("the file system did not answer within %v; is the disk or its mount gone?", took)
}
