// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// dataDir opens the data directory and returns the names of its networks. A missing directory is an
// error here, since a person may have mistyped it. The library takes it for an empty one.
func (a *app) dataDir() (*hostlocal.Store, []string, error) {
	dir := a.flags.dataDir
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("data dir %s: there is no such directory; --data-dir says where host-local keeps its networks", dir)
	}
	store := hostlocal.New(dir)
	names, err := store.Networks()
	if last, _ := filepath.Glob(filepath.Join(dir, "last_reserved_ip*")); err == nil && len(names) == 0 && len(last) > 0 {
		err = fmt.Errorf("data dir %s is itself a network's directory; the data dir is the directory above it", dir)
	}
	return store, names, err
}

// asked returns the networks that --network names, or all that have a directory.
func (a *app) asked(names []string) []string {
	if len(a.flags.networks) == 0 || a.flags.allNetworks() {
		return names
	}
	return slices.Compact(slices.Sorted(slices.Values(a.flags.networks)))
}

// unnamed returns an error that lists the networks of which --network must name some.
func (a *app) unnamed(why string) error {
	_, names, err := a.dataDir()
	if err == nil {
		err = fmt.Errorf("%s: %s", a.flags.dataDir, existing(names))
	}
	return usagef("a --network is missing: %s (%w)", why, err)
}

// existing lists the networks that exist.
func existing(names []string) string {
	return "it holds " + cmp.Or(term.Few(names, 20), "no network")
}
