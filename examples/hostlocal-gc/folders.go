// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// folders are the networks under the data dir.
type folders struct {
	all    []*hostlocal.Store // each is a sibling of every other
	wanted []*hostlocal.Store // those that --network asks for, or all
}

// folders looks into the data dir. A network that was asked for and has no
// folder is an error: the library takes it for an empty one, as an agent needs
// it, but a person mistyped.
func (a *app) folders() (folders, error) {
	f := &a.flags
	switch info, err := os.Stat(f.dataDir); {
	case errors.Is(err, fs.ErrNotExist):
		return folders{}, fmt.Errorf("data dir %s: there is no such folder; --data-dir says where host-local keeps its networks", f.dataDir)
	case err != nil:
		return folders{}, fmt.Errorf("data dir: %w", err)
	case !info.IsDir():
		return folders{}, fmt.Errorf("data dir %s is not a folder", f.dataDir)
	}
	names, err := hostlocal.Networks(f.dataDir)
	if err != nil {
		return folders{}, err
	}
	if len(names) == 0 && isNetwork(f.dataDir) {
		return folders{}, fmt.Errorf("data dir %s is itself a network's folder; the data dir is the folder above it", f.dataDir)
	}
	for _, name := range f.networks {
		if slices.Contains(names, name) {
			continue
		}
		if info, err := os.Stat(filepath.Join(f.dataDir, name)); err == nil && info.IsDir() {
			names = append(names, name) // behind a link, which a listing leaves out
			continue
		}
		return folders{}, fmt.Errorf("network %q has no folder in %s; %s", name, f.dataDir, those(names))
	}
	var out folders
	for _, name := range names {
		s, err := hostlocal.New(f.dataDir, name)
		if err != nil {
			return folders{}, err
		}
		out.all = append(out.all, s)
		if len(f.networks) == 0 || slices.Contains(f.networks, name) {
			out.wanted = append(out.wanted, s)
		}
	}
	return out, nil
}

// siblings returns all networks but s.
func (f folders) siblings(s *hostlocal.Store) []*hostlocal.Store {
	return slices.DeleteFunc(slices.Clone(f.all), func(other *hostlocal.Store) bool { return other == s })
}

// isNetwork reports whether dir holds what host-local writes into a network's
// folder.
func isNetwork(dir string) bool {
	found, _ := filepath.Glob(filepath.Join(dir, "last_reserved_ip*")) // an error is about the pattern
	return len(found) > 0
}

// those lists the networks that exist.
func those(names []string) string {
	switch {
	case len(names) == 0:
		return "it holds no network"
	case len(names) > 20:
		return fmt.Sprintf("it holds %d others, which the command networks lists", len(names))
	}
	return "it holds " + strings.Join(names, ", ")
}
