// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// A lock is the lock of an election without an API server. The other candidate, if there is one,
// holds it and renews it at each access.
type lock struct {
	other bool

	mu     sync.Mutex // guards the fields below
	calls  int
	record *resourcelock.LeaderElectionRecord
}

var _ resourcelock.Interface = (*lock)(nil)

// self is this candidate.
const self = "this-node"

// newLock returns a lock that is free, or held by the other candidate.
func newLock(other bool) *lock {
	l := &lock{other: other}
	l.record = &resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 15}
	if other {
		l.record.HolderIdentity = "another-node"
		l.record.AcquireTime = metav1.Now()
	}
	return l
}

// Get returns the holder of the lock.
func (l *lock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.other {
		l.record.RenewTime = metav1.NewTime(time.Now())
	}
	found := *l.record
	raw, err := json.Marshal(found)
	return &found, raw, err
}

// Create returns an error: the lock exists.
func (l *lock) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return errors.New("making a lock that is there already")
}

// Update takes, renews or releases the lock, unless the other candidate holds it.
func (l *lock) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.other {
		return errors.New("updating a lock that another holds")
	}
	l.record = &r
	return nil
}

// RecordEvent does nothing.
func (l *lock) RecordEvent(string) {}

// Identity returns this candidate's name.
func (l *lock) Identity() string { return self }

// Describe returns the lock's name.
func (l *lock) Describe() string { return "lock of a test" }

// seen returns the number of accesses and the current holder.
func (l *lock) seen() (calls int, holder string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls, l.record.HolderIdentity
}
