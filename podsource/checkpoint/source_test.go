// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// An agent is a record, of this boot at first, and a source that reads it.
type agent struct {
	t      *testing.T
	path   string
	boot   int
	reads  bool // the file, as another process does
	record *checkpoint.Checkpoint
	reader *checkpoint.Source
}

func (a *agent) Pods(ctx context.Context) (podsource.Answer, error) {
	if a.reads {
		return a.reader.Pods(ctx)
	}
	return a.record.Pods(ctx)
}

// start starts the agent on a node without older attachments, or again.
func (a *agent) start() {
	a.t.Helper()
	opts := checkpoint.Options{Networks: []string{"podnet", "storage"}, Lag: 1, BootID: fmt.Sprint("boot ", a.boot)}
	record, err := checkpoint.Open(a.path, opts)
	reader, newErr := checkpoint.New(a.path, opts)
	if err := errors.Join(err, newErr); err != nil {
		a.t.Fatal(err)
	}
	a.record, a.reader = record, reader
	a.t.Cleanup(func() { _ = record.Close() }) // the file may be unreadable, and was written with each change
	none := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		return podsource.Answer{Networks: []string{podsource.EveryNetwork}, Names: podsource.AnyContainer, Authoritative: true}, nil
	})
	for a.boot == 0 && err == nil { // until no gap is left
		err = record.Backfill(a.t.Context(), none, nil)
	}
}

func (a *agent) must(errs ...error) {
	a.t.Helper()
	if err := errors.Join(errs...); err != nil {
		a.t.Fatal(err)
	}
}

func keyOf(at podsource.Attachment) checkpoint.Key {
	return checkpoint.Key{Network: at.Network, ContainerID: at.ContainerID, IfName: at.IfName}
}

// TestSource runs the hazards of sources against a record that is open, and against a reader of its file.
func TestSource(t *testing.T) {
	for name, reads := range map[string]bool{"Writer": false, "Reader": true} {
		t.Run(name, func(t *testing.T) {
			gctest.TestSource(t, func(t *testing.T) gctest.Fixture {
				a := &agent{t: t, path: filepath.Join(t.TempDir(), "attachments"), reads: reads}
				a.start()
				f := gctest.Fixture{
					Source: a, Networks: []string{"podnet", "storage"},
					Attach: func(at podsource.Attachment) {
						a.must(a.record.Add(checkpoint.Entry{Key: keyOf(at), IPs: at.IPs, Pod: at.Pod}))
					},
					Detach: func(at podsource.Attachment) { a.must(a.record.Remove(keyOf(at))) },
					Reboot: func() {
						a.boot++
						a.must(a.record.Close())
						a.start()
					},
				}
				if reads { // a writer has it in memory
					f.Break = func() { a.must(os.Rename(a.path, a.path+".aside"), os.WriteFile(a.path, []byte("{"), 0o600)) }
					f.Repair = func() { a.must(os.Rename(a.path+".aside", a.path)) }
					f.Lose = func() { a.must(os.Remove(a.path)) }
				}
				return f
			})
		})
	}
}
