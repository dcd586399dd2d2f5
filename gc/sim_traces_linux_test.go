// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"testing"
	"time"
)

// n picks what an operation means by its number.
const (
	nHourBack      = 1        // of clockSteps
	nMinute        = 7        // of clockSteps
	nTenYears      = 9        // of clockSteps
	nMinuteBack    = 2        // of clockSteps
	nEightMinutes  = 6        // of timeSteps
	nTwentyMinutes = 7        // of timeSteps
	nLost          = 3 << 8   // of the fates of a DEL
	nPod           = 1<<8 + 2 // a pod in the first network, with nothing special about it
)

// later is what a pass meets after its first readings of the clocks, and before
// it has read the first owner.
func later(inner ...simOp) []simOp {
	return append([]simOp{{}, {}, {}, {}}, inner...)
}

// simTrace runs a script to which TestSimulator once shrank a failure.
func simTrace(t *testing.T, config simConfig, script []simOp, want func(*simulation) error) {
	t.Helper()
	log.SetOutput(io.Discard) // host-local's allocator talks
	defer log.SetOutput(os.Stderr)
	var trace strings.Builder
	s, err := newSimulation(simDir(t), config, func(format string, args ...any) { fmt.Fprintf(&trace, format+"\n", args...) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, op := range script {
		s.do(op)
		s.check()
	}
	if err := want(s); err != nil && s.broken == nil {
		s.broken = err
	}
	if s.broken == nil {
		s.settle()
	}
	if s.broken != nil {
		t.Errorf("%v\n%s", s.broken, trace.String())
	}
}

func wantNothing(*simulation) error { return nil }

// The traces below are of the first edition: its seeds, and the shortest scripts
// for them. In all but one a reservation was made while a pass was under way, and
// was taken to be as old as the pass. What counts is when a file was first seen,
// and that is after its owner was read (R5, hazard 46).

func TestTraceSeed33687(t *testing.T) { // after a step back
	simTrace(t, simConfig{sources: []simKind{fromRuntime}, allowEmpty: true}, []simOp{
		{what: opPod, n: nPod}, {what: opADD},
		{what: opClock, n: nHourBack},
		{what: opFailADD, n: nLost},
		{what: opPass, inner: later(simOp{what: opTime, n: nTwentyMinutes}, simOp{what: opTakeOver})},
		{what: opPass},
	}, wantNothing)
}

func TestTraceSeed27150(t *testing.T) { // and a step forward after it
	simTrace(t, simConfig{sources: []simKind{fromRecord, fromRuntime}, allowEmpty: true}, []simOp{
		{what: opPod, n: nPod}, {what: opADD}, {what: opProceed}, {what: opProceed}, {what: opProceed},
		{what: opStop, n: nLost},
		{what: opPass, inner: later(simOp{what: opTime, n: nEightMinutes}, simOp{what: opTakeOver})},
		{what: opClock, n: nMinute},
		{what: opPass},
	}, wantNothing)
}

func TestTraceSeed68926(t *testing.T) { // and a step of years forward in it, one back after it
	simTrace(t, simConfig{sources: []simKind{fromRuntime}, allowEmpty: true}, []simOp{
		{what: opPod, n: nPod}, {what: opADD},
		{what: opPass},
		{what: opFailADD, n: nLost},
		{what: opPass, inner: later(simOp{what: opTime, n: nTwentyMinutes}, simOp{what: opTakeOver}, simOp{what: opClock, n: nTenYears})},
		{what: opClock, n: nMinuteBack},
		{what: opPass},
	}, wantNothing)
}

// A leak has two ages, by its timestamp and since it was first seen, and both are
// lower bounds. The agent started after a step back that it did not see.
func TestTraceSeed27253(t *testing.T) {
	simTrace(t, simConfig{sources: []simKind{fromRecord, fromRuntime}, allowEmpty: true}, []simOp{
		{what: opPod, n: nPod}, {what: opADD},
		{what: opDelete, n: nLost},
		{what: opClock, n: nHourBack},
		{what: opRestart, n: 1},
		{what: opTime, n: nTwentyMinutes}, {what: opTime, n: nTwentyMinutes}, {what: opTime, n: nEightMinutes}, {what: opTime, n: nEightMinutes},
		{what: opPass}, // its timestamp lies in the future
		{what: opTime, n: nEightMinutes},
		{what: opPass}, // and is four minutes old
	}, func(s *simulation) error {
		if age := s.wall().Sub(simEpoch); age > 5*time.Minute || s.releases != 1 || len(s.files) > 0 {
			return fmt.Errorf("the leak, %v old by its timestamp, was not released as soon as it was seen for long enough", age)
		}
		return nil
	})
}
