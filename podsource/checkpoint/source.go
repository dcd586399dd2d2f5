// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// DefaultLag is the default of Options.Lag: twice kubelet's runtimeRequestTimeout, whose
// default is two minutes, and three minutes.
const DefaultLag = 7 * time.Minute

// Options are the options of [Open] and [New]. Networks is required.
type Options struct {
	// Networks are the networks in which the agent serves every ADD, at least one, and none of
	// which it serves only some. If the record was not kept of one of them, it does not speak of
	// what is reserved, until a Backfill or a boot.
	Networks []string
	// BootID identifies the current boot of the node. A record of another boot is
	// empty. Zero is the kernel's, /proc/sys/kernel/random/boot_id. Where that can't be
	// read, as on systems other than Linux, a record stays valid after a boot.
	BootID string
	// Lag is how long after its address was reserved the source of a
	// [Checkpoint.Backfill] may first list a container, and how long after [Open] an
	// ADD of another CNI server may still reserve an address. Zero is [DefaultLag];
	// it must not be negative.
	Lag time.Duration
	// Nested asserts that the node is itself a container, as in kind: process 1 is not the
	// machine's. Without it all entries count as live there, since in most cases the agent's pod
	// lacks hostPID and sees only its own processes. With it, some container must run, in a PID
	// namespace of its own.
	Nested bool
}

// A place is where a record is, and for what it is read.
type place struct {
	path string
	opts Options
}

func (o Options) validate(path string) (p place, err error) {
	switch {
	case len(o.Networks) == 0 || slices.ContainsFunc(o.Networks, func(network string) bool { return !name.MatchString(network) }):
		return p, fmt.Errorf("Options.Networks is %q; name the networks in which the agent serves every ADD", o.Networks)
	case o.Lag < 0:
		return p, fmt.Errorf("Options.Lag is %v; it must not be negative", o.Lag)
	}
	bootID, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // random(4)
	o.BootID = cmp.Or(o.BootID, strings.TrimSpace(string(bootID)))
	o.Lag, o.Networks = cmp.Or(o.Lag, DefaultLag), slices.Clone(o.Networks)
	path, err = filepath.Abs(path)
	return place{path, o}, err
}

// Rank returns [podsource.RankCache].
func (*Source) Rank() podsource.Rank { return podsource.RankCache }

// String returns "checkpoint".
func (*Source) String() string { return "checkpoint" }

// Rank returns [podsource.RankCache].
func (*Checkpoint) Rank() podsource.Rank { return podsource.RankCache }

// String returns "checkpoint".
func (*Checkpoint) String() string { return "checkpoint" }

// A Source reads a record that another process, or another part of this one, writes.
// Use [New] to make one.
type Source struct{ place }

// New returns the record at path as a source, for programs that do not write it. Each
// call of Pods reads the file; it follows symbolic links and takes no lock. New itself
// reads only the kernel's boot ID. Invalid arguments are an error. The answer has a gap
// since the file was last written (hazard 51).
func New(path string, opts Options) (*Source, error) {
	p, err := opts.validate(path)
	if err != nil {
		return nil, err
	}
	return &Source{p}, nil
}

// Pods returns one pod for each live attachment of the record, or [podsource.ErrNotHere] if there is
// no file. See the package comment for the declarations and other errors.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	now, err := s.load(0)
	return s.answer(ctx, now, err)
}

// Pods returns what [Source.Pods] does, of the record in memory. After Close the error is
// [fs.ErrClosed], and after the directory was moved [ErrLocked].
func (c *Checkpoint) Pods(ctx context.Context) (podsource.Answer, error) {
	s, err := c.state.Load(), held(c.lock) // without its lock another process may have recorded attachments (hazard 96)
	switch {
	case s.entries == nil:
		err = fs.ErrClosed
	case !s.written:
		err = fs.ErrNotExist
	}
	if err != nil {
		err = fmt.Errorf("reading the record %s: %w", c.path, err)
	}
	now := s.at(time.Now())
	c.state.CompareAndSwap(s, now) // else a change has read the clocks meanwhile
	return c.answer(ctx, now, err)
}

// answer returns a pod for each entry of a record that has not certainly ended, and declares
// that there are no other live containers in these networks, except in the gap. It returns the
// error with which the record was read.
func (p place) answer(ctx context.Context, s *state, err error) (podsource.Answer, error) {
	a := podsource.Answer{Source: "checkpoint"}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", podsource.ErrNotHere, err)
	}
	if err != nil {
		return a, err
	}
	live, _, unknown := divide(ctx, s.sorted(), p.opts.Nested)
	if ctx.Err() != nil {
		return a, context.Cause(ctx)
	}
	a.Networks, a.Names, a.AtOnce, a.Authoritative = p.opts.Networks, podsource.AnyContainer, true, true
	a.Gaps = s.gap.answer()
	for _, e := range live {
		of := podsource.Pod{NamespacedName: e.Pod, UID: e.UID, ContainerIDs: []string{e.ContainerID}, IPs: e.IPs, Network: e.Network}
		a.Pods = append(a.Pods, of)
	}
	if len(a.Gaps) > 0 {
		a.Note = "Attachments may be missing of times in which the record was not kept."
	}
	if unknown != nil {
		a.Note += fmt.Sprintf(" Attachments count as live although their network namespaces may have ended: %v", unknown)
	}
	return a, nil
}
