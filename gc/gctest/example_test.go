// SPDX-License-Identifier: Apache-2.0

package gctest_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A stateFile is the state of an agent: its attachments, by container and interface. It is on a
// tmpfs, and the agent makes an empty one when it starts for the first time since the boot.
type stateFile string

func (f stateFile) load() (all map[string]podsource.Attachment, err error) {
	text, err := os.ReadFile(string(f))
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	return all, err
}

// source is the agent's source.
func (f stateFile) source() podsource.Source {
	return podsource.Attachments([]string{"podnet", "storage"}, podsource.Always, func(context.Context) ([]podsource.Attachment, error) {
		all, err := f.load() // a missing file is an error, too
		return slices.Collect(maps.Values(all)), err
	})
}

func (f stateFile) save(all map[string]podsource.Attachment) error {
	text, err := json.Marshal(all)
	return errors.Join(err, os.WriteFile(string(f)+".new", text, 0o600), os.Rename(string(f)+".new", string(f)))
}

func TestStateFile(t *testing.T) { gctest.TestSource(t, stateFixture) }

func stateFixture(t *testing.T) gctest.Fixture {
	file := stateFile(filepath.Join(t.TempDir(), "state.json"))
	do := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	change := func(how func(all map[string]podsource.Attachment)) {
		all, err := file.load()
		how(all)
		do(errors.Join(err, file.save(all)))
	}
	start := func() { do(file.save(map[string]podsource.Attachment{})) }
	start()
	key := func(at podsource.Attachment) string { return at.ContainerID + " " + at.IfName }
	return gctest.Fixture{
		Source:   file.source(),
		Networks: []string{"podnet", "storage"},
		Attach:   func(at podsource.Attachment) { change(func(all map[string]podsource.Attachment) { all[key(at)] = at }) },
		Detach: func(at podsource.Attachment) {
			change(func(all map[string]podsource.Attachment) { delete(all, key(at)) })
		},
		Break: func() {
			do(errors.Join(os.Rename(string(file), string(file)+".whole"), os.WriteFile(string(file), []byte("{"), 0o600)))
		},
		Repair: func() { do(os.Rename(string(file)+".whole", string(file))) },
		Lose:   func() { do(os.Remove(string(file))) },
		Reboot: start,
	}
}
