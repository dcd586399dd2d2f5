// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

const (
	// block is how many reservations a goroutine takes at once.
	block = 512
	// many is from how many on a second goroutine helps. Below, a pass takes a
	// few milliseconds, and a node has better use for its other CPUs.
	many = 4 * block
)

// inBlocks has the indexes below n worked on: do takes blocks of them until one
// is empty. Of many it runs twice at the same time, where there are two CPUs. A
// panic in the other goroutine, which would end the process, is the error (R13);
// one in the caller's is the caller's.
func inBlocks(n int, do func(take func() (from, to int))) (err error) {
	var next atomic.Int64
	take := func() (from, to int) {
		to = int(next.Add(block))
		return min(to-block, n), min(to, n)
	}
	if n < many || runtime.GOMAXPROCS(0) < 2 {
		do(take)
		return nil
	}
	var helper sync.WaitGroup
	helper.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panicked: %v\n%s", p, debug.Stack())
			}
		}()
		do(take)
	})
	func() {
		defer helper.Wait() // also when do panics: nobody works on after the call
		do(take)
	}()
	return err
}
