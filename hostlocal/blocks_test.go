// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestInBlocks: each index is given out once, however many there are.
func TestInBlocks(t *testing.T) {
	for _, n := range []int{0, 1, block - 1, block, block + 1, many - 1, many, many + 1, 2*many + 7} {
		given := make([]atomic.Int32, n)
		err := inBlocks(n, func(take func() (from, to int)) {
			for from, to := take(); from < to; from, to = take() {
				for i := from; i < to; i++ {
					given[i].Add(1)
				}
			}
			if from, to := take(); from < to {
				t.Errorf("of %d: %d to %d after the end", n, from, to)
			}
		})
		if err != nil {
			t.Errorf("of %d: %v", n, err)
		}
		for i := range given {
			if g := given[i].Load(); g != 1 {
				t.Fatalf("of %d: index %d was given out %d times", n, i, g)
			}
		}
	}
}

// meet returns a function that returns when two goroutines have called it.
func meet() (arrive func()) {
	var both sync.WaitGroup
	both.Add(2)
	return func() {
		both.Done()
		both.Wait()
	}
}

// twoCPUs lets two goroutines help each other, on every machine.
func twoCPUs(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// TestInBlocksTwoHands: of many two work at the same time, of few one.
func TestInBlocksTwoHands(t *testing.T) {
	twoCPUs(t)
	arrive := meet()
	run := func(n int, do func()) {
		if err := inBlocks(n, func(func() (from, to int)) { do() }); err != nil {
			t.Error(err)
		}
	}
	within(t, "two hands", func() { run(many, arrive) })
	hands := 0
	run(many-1, func() { hands++ })
	if hands != 1 {
		t.Errorf("%d hands for few, want 1", hands)
	}
	runtime.GOMAXPROCS(1)
	run(many, func() { hands++ })
	if hands != 2 {
		t.Errorf("%d hands on one CPU, want 1", hands-1)
	}
}

// TestInBlocksPanics: whichever hand panics, the process lives, and when the
// caller learns of it nobody is at work any more (R13).
func TestInBlocksPanics(t *testing.T) {
	twoCPUs(t)
	for _, helpers := range []bool{false, true} {
		arrive := meet()
		var atWork atomic.Int32
		within(t, "a panic", func() {
			var err error
			defer func() {
				told := fmt.Sprint(err)
				if !helpers {
					told = fmt.Sprint(recover())
				}
				if !strings.Contains(told, "out of paper") {
					t.Errorf("the caller learns of %v", told)
				}
				if n := atWork.Load(); n != 0 {
					t.Errorf("%d hands are still at work", n)
				}
			}()
			err = inBlocks(many, func(func() (from, to int)) {
				atWork.Add(1)
				defer atWork.Add(-1)
				arrive()
				if isHelper := strings.Contains(stack(), "WaitGroup).Go"); isHelper == helpers {
					panic("out of paper")
				}
				for range 100_000 { // for as long as it takes a caller that does not wait
					runtime.Gosched()
				}
			})
		})
	}
}

// stack is the calling goroutine's.
func stack() string {
	buf := make([]byte, 8<<10)
	return string(buf[:runtime.Stack(buf, false)])
}

// TestReadOwnersOfMany: two goroutines read what one would.
func TestReadOwnersOfMany(t *testing.T) {
	twoCPUs(t)
	s := newStore(t)
	const n = 2*many + 100
	ip := netip.MustParseAddr("10.0.0.1")
	var want []Reservation
	for i := range n {
		r := Reservation{IP: ip, Owner: Owned, ContainerID: fmt.Sprint("container", i), IfName: fmt.Sprint("eth", i%3)}
		switch {
		case i%5 == 0:
			r = Reservation{IP: ip}
		case i%7 == 0:
			r = Reservation{IP: ip, Owner: Vanished}
		}
		write(t, at(s, ip.String()), fmt.Sprintf("container%d\r\neth%d", i, i%3))
		want = append(want, r)
		ip = ip.Next()
	}
	rs := scan(t, s)
	for i := range want {
		if want[i].Owner == Vanished {
			if err := os.Remove(s.path(&rs[i])); err != nil {
				t.Fatal(err)
			}
		}
	}
	failures, err := s.ReadOwners(t.Context(), rs, func(i int) bool { return i%5 != 0 }, nil)
	if failures != nil || err != nil {
		t.Fatalf("ReadOwners: %v, %v", failures, err)
	}
	for i := range rs {
		want[i].ReservedAt = rs[i].ReservedAt
	}
	if diff := cmp.Diff(want, rs, equal); diff != "" {
		t.Errorf("ReadOwners (-want +got):\n%s", diff)
	}

	for i := range rs {
		rs[i].Owner = Unread
	}
	broken := slices.Clone(rs)
	for i := range broken {
		if i%2 == 0 { // a name that no file system takes
			broken[i].IP = netip.MustParseAddr("fe80::1").WithZone(strings.Repeat("z", 300))
		}
	}
	failures, err = s.ReadOwners(t.Context(), broken, nil, nil)
	if len(failures) != (n+1)/2 || err != nil {
		t.Errorf("ReadOwners of unreadable ones: %d failures, %v; want %d", len(failures), err, (n+1)/2)
	}
	arrive := meet()
	var once sync.Once
	_, err = s.ReadOwners(t.Context(), slices.Clone(rs), func(int) bool {
		if strings.Contains(stack(), "WaitGroup).Go") {
			arrive()
			panic("out of ink")
		}
		once.Do(arrive) // the caller leaves some to the helper
		return false
	}, nil)
	if err == nil || !strings.Contains(err.Error(), "out of ink") || !strings.Contains(err.Error(), s.dir()) {
		t.Errorf("ReadOwners whose helper panics: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if failures, err := s.ReadOwners(ended, rs, nil, nil); failures != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("ReadOwners whose context has ended: %v, %v", failures, err)
	}
	if slices.ContainsFunc(states(rs), func(o OwnerState) bool { return o != Unread }) {
		t.Error("owners were read after the context had ended")
	}
}
