// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Rank returns [podsource.RankCache].
func (c *Checkpoint) Rank() podsource.Rank { return podsource.RankCache }

// Pods returns the live attachments of the record, one pod each, or
// [podsource.ErrNotHere] where nothing was ever recorded. It reads no file. See
// the package comment for what the answer declares.
func (c *Checkpoint) Pods(ctx context.Context) (podsource.Answer, error) {
	return answer(ctx, c.networks, func() ([]Entry, error) {
		s := c.state.Load()
		switch {
		case s == nil:
			return nil, fmt.Errorf("asking the record %s: %w", c.path, fs.ErrClosed)
		case !s.written:
			return nil, fmt.Errorf("asking the record %s, which was never written: %w", c.path, fs.ErrNotExist)
		}
		return s.entries(), nil // of the state that was looked at: c may be closed by now
	})
}

// Read is the record at path as a source, for whoever does not write it. It
// reads the file whenever it is asked, and takes no lock.
func Read(path string, opts Options) podsource.Source { return reader{path, opts} }

type reader struct {
	path string
	opts Options
}

func (r reader) Rank() podsource.Rank { return podsource.RankCache }

func (r reader) Pods(ctx context.Context) (podsource.Answer, error) {
	return answer(ctx, r.opts.Networks, func() ([]Entry, error) {
		bootID, err := r.opts.bootID()
		if err != nil {
			return nil, err
		}
		return load(r.path, bootID)
	})
}

// answer makes pods of the entries that are not surely dead, and declares that
// there are no others in these networks: what is not here was not recorded, or
// not in this boot.
func answer(ctx context.Context, networks []string, entries func() ([]Entry, error)) (podsource.Answer, error) {
	a := podsource.Answer{Source: "checkpoint"}
	if len(networks) == 0 {
		return a, errors.New("asking a record that was opened without Options.Networks: nothing tells which networks it is about")
	}
	all, err := entries()
	if errors.Is(err, fs.ErrNotExist) {
		return a, fmt.Errorf("%w: %w", podsource.ErrNotHere, err)
	}
	if err != nil {
		return a, err
	}
	var pods []podsource.Pod
	for _, e := range all {
		if err := ctx.Err(); err != nil {
			return a, err
		}
		if e.NetNS.gone() {
			continue
		}
		pods = append(pods, podsource.Pod{
			NamespacedName: e.Pod, UID: e.UID, ContainerIDs: []string{e.ContainerID}, IPs: e.IPs, Network: e.Network,
		})
	}
	a.Pods, a.Networks, a.Authoritative = pods, networks, true
	a.Names = []podsource.Names{{Form: podsource.AnyForm, Networks: networks}}
	return a, nil
}
