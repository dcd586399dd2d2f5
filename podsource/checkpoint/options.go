// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

const (
	// DefaultTimeout is less than gc gives all sources together, so that an error
	// names the one that hangs.
	DefaultTimeout = 10 * time.Second
	// DefaultLag is the Lag of Options that set none: twice kubelet's
	// runtimeRequestTimeout, of which the default is two minutes, and three minutes.
	DefaultLag = 7 * time.Minute
)

// Options say what a record is about, and how it is read. Their zero value is
// refused, as there are no networks that a record could be about by default.
type Options struct {
	// Networks are those of which the agent serves every ADD. Of them, and of no
	// other, the record says who lives. At least one must be given.
	Networks []string
	// BootID names the boot of the kernel in which the recorded namespaces live.
	// A record of another boot is empty. Zero is the kernel's own,
	// /proc/sys/kernel/random/boot_id, and on other systems than Linux unknown:
	// there a record outlives the boot.
	BootID string
	// Timeout is how long one question may take, which looks at the path of each
	// recorded namespace. The context may end it earlier. Zero is [DefaultTimeout]; it
	// must not be negative.
	Timeout time.Duration
	// Lag is how much later than its address is reserved the source of a
	// [Checkpoint.Backfill] lists a container at the latest, and how long the ADD of
	// somebody else may go on to reserve. Zero is [DefaultLag]; it must not be
	// negative.
	Lag time.Duration
}

// checked returns the path of a record and its options with nothing left out, or
// what is wrong with them.
func (o Options) checked(path string) (string, Options, error) {
	switch {
	case path == "":
		return path, o, errors.New("it has no path")
	case len(o.Networks) == 0:
		return path, o, errors.New("Options.Networks are missing: nothing tells which networks it is about")
	case o.Timeout < 0 || o.Lag < 0:
		return path, o, fmt.Errorf("Options.Timeout is %v and Options.Lag %v; neither can be negative", o.Timeout, o.Lag)
	}
	for _, network := range o.Networks {
		if !name.MatchString(network) {
			return path, o, fmt.Errorf("%q in Options.Networks is not the name of a network", network)
		}
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return path, o, err
	}
	if o.BootID == "" {
		// Not %w: this must not look as if there were no record.
		if o.BootID, err = kernelBootID(); err != nil {
			return path, o, fmt.Errorf("reading the kernel's boot ID, which Options.BootID can stand for: %v", err) //nolint:errorlint // see above
		}
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Lag == 0 {
		o.Lag = DefaultLag
	}
	return absolute, o, nil
}

// resolved returns the path of the record's file itself. A writer replaces the
// file and locks what stands beside it: by the name of a link it would replace the
// link, and another writer would have another lock.
func resolved(path string) (string, error) {
	if isLink(path) {
		return filepath.EvalSymlinks(path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path, err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}
