// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// DefaultLag is the default of Options.Lag: twice kubelet's runtimeRequestTimeout, whose
// default is two minutes, and three minutes.
const DefaultLag = 7 * time.Minute

// Options are the options of [Open] and [New]. Networks is required.
type Options struct {
	// Networks are the networks in which the agent serves every ADD. The record speaks
	// of these networks and of no other. There must be at least one.
	Networks []string
	// BootID identifies the current boot of the node. A record of another boot is
	// empty. Zero is the kernel's, /proc/sys/kernel/random/boot_id. On systems other
	// than Linux zero is unknown, and a record stays valid after a boot.
	BootID string
	// Lag is how long after its address was reserved the source of a
	// [Checkpoint.Backfill] may first list a container, and how long after [Open] an
	// ADD of another CNI server may still reserve an address. Zero is [DefaultLag];
	// it must not be negative.
	Lag time.Duration
}

// validate returns the absolute path of a record and its options with defaults.
func (o Options) validate(path string) (string, Options, error) {
	switch {
	case path == "":
		return path, o, errors.New("its path is empty")
	case len(o.Networks) == 0:
		return path, o, errors.New("Options.Networks is empty; name the networks in which the agent serves every ADD")
	case o.Lag < 0:
		return path, o, fmt.Errorf("Options.Lag is %v; it must not be negative", o.Lag)
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
		// Not %w: fs.ErrNotExist would mean that there is no record.
		if o.BootID, err = kernelBootID(); err != nil {
			return path, o, fmt.Errorf("reading the kernel's boot ID (Options.BootID replaces it): %v", err) //nolint:errorlint // see above
		}
	}
	if o.Lag == 0 {
		o.Lag = DefaultLag
	}
	return absolute, o, nil
}

// resolve returns the path of the record's file without links. A writer replaces the
// file and locks another one beside it. With a link's path it would replace the link,
// and two writers could have different locks.
func resolve(path string) (string, error) {
	if isLink(path) {
		return filepath.EvalSymlinks(path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path, err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}
