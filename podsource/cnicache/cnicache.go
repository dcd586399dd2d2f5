// SPDX-License-Identifier: Apache-2.0

package cnicache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// DefaultDir is where libcni keeps results unless its caller says otherwise (cni,
// libcni CacheDir).
const DefaultDir = "/var/lib/cni/results"

// Options configure a Source. Living must be set.
type Options struct {
	// Dirs are the directories with results. Nil is [DefaultDir]. Directories that do not
	// exist are ignored.
	Dirs []string
	// Living returns a function that reports whether the network namespace that was at a
	// path at a time still exists, and whether that is certain whatever was done to the
	// clock. It is the method of a source of package netns, and must be set.
	Living func(context.Context) (func(path string, at time.Time) (lives, sure bool), error)
}

// A Source reads caches of CNI results. Keep one for the life of the process: it
// remembers the entries of the last call, and so since when a cache was not wiped.
type Source struct {
	dirs   []string
	living func(context.Context) (living, error)

	mu     sync.Mutex // guards caches
	caches []cache    // by the indexes of dirs
}

// living is the function that Options.Living returns.
type living = func(path string, at time.Time) (lives, sure bool)

// New returns a source. It does not access the disk. It is an error if Living is missing, or
// a directory is not an absolute path.
func New(opts Options) (*Source, error) {
	if opts.Living == nil {
		return nil, errors.New("reading CNI caches: Options.Living is missing: set it to the method of a netns source")
	}
	dirs := slices.Clone(opts.Dirs)
	if len(dirs) == 0 {
		dirs = []string{DefaultDir}
	}
	for i, dir := range dirs {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("reading CNI caches: %q is not an absolute path", dir)
		}
		dirs[i] = filepath.Clean(dir)
	}
	return &Source{dirs: dirs, living: opts.Living, caches: make([]cache, len(dirs))}, nil
}

// Rank returns [podsource.RankCache]: after an ADD has ended, the cache has its entry.
func (*Source) Rank() podsource.Rank { return podsource.RankCache }

// String returns "cnicache".
func (*Source) String() string { return "cnicache" }

// Pods returns one pod for each entry that may be live; all entries are in the answer's
// Cache. A directory that can't be read is an error. Each entry takes a few system calls and
// the parsing of its JSON.
//
// If several directories exist, a network's Since is the latest of theirs, because its entries
// may have been wiped from any of them. For a directory without an entry of the network
// the oldest of its entries counts, or its last change if it has none.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{
		Source: "cnicache", Supplementary: true,
		Names: podsource.AnyContainer, AtOnce: true, Cache: &podsource.Cache{Since: make(map[string]time.Time)},
	}
	lives, err := s.living(ctx)
	if err != nil {
		return podsource.Answer{Source: a.Source}, fmt.Errorf("reading CNI caches: which network namespaces live is not known: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var notes []string
	for i, dir := range s.dirs {
		now, err := readDir(ctx, dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return podsource.Answer{Source: a.Source}, fmt.Errorf("reading the CNI cache %s: %w", dir, err)
		}
		switch {
		case now.entries == nil:
			notes = append(notes, fmt.Sprintf("the directory %s does not exist", dir))
		case len(now.entries) == 0:
			notes = append(notes, fmt.Sprintf("%s holds no record; is it the directory of this node's runtime?", dir))
		}
		now.follow(&s.caches[i], lives)
		s.caches[i] = now
		for _, file := range slices.Sorted(maps.Keys(now.entries)) {
			e := now.entries[file]
			a.Cache.Entries = append(a.Cache.Entries, e.attachments...)
			if p, may := e.pod(lives); may {
				a.Pods = append(a.Pods, p)
			}
		}
	}
	for _, c := range s.caches {
		for network := range c.since {
			for _, other := range s.caches {
				if at := cmp.Or(other.since[network], other.since[anyNetwork]); at.After(a.Cache.Since[network]) {
					a.Cache.Since[network] = at
				}
			}
		}
	}
	delete(a.Cache.Since, anyNetwork)
	if len(notes) == len(s.dirs) { // else some directory has entries, and the others may be unused
		a.Note = strings.Join(notes, "; ")
	}
	return a, nil
}

// A cache has what a call found in a directory.
type cache struct {
	entries map[string]entry     // by file name; nil if there is no directory
	since   map[string]time.Time // since when the entries of a network, or of all, were not wiped
}

const anyNetwork = "" // no network has this name

// readDir reads a directory. The last change of one without entries counts as the moment in which
// it was wiped.
func readDir(ctx context.Context, dir string) (c cache, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return cache{}, err
	}
	c.entries, c.since = make(map[string]entry, len(files)), make(map[string]time.Time)
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return cache{}, err
		}
		if !f.Type().IsRegular() { // not an entry
			continue
		}
		path := filepath.Join(dir, f.Name())
		e, err := readEntry(path)
		info, infoErr := f.Info()
		if errors.Is(errors.Join(err, infoErr), fs.ErrNotExist) { // after its DEL
			continue
		}
		if e.made, e.origin = time.Now(), "CNI cache "+path; infoErr == nil { // if unknown, it counts as of this boot
			e.made = info.ModTime()
		}
		if err != nil {
			e.attachments, e.origin = inName(f.Name()), e.origin+", which is damaged"
		}
		if len(e.attachments) > 0 {
			c.entries[f.Name()] = e
		}
	}
	info, err := os.Stat(dir)
	if err == nil && len(c.entries) == 0 {
		c.since[anyNetwork] = info.ModTime()
	}
	return c, err
}

// follow dates a cache, given what the last call found. A network's oldest entry counts as the first
// one since its entries were wiped. They were not wiped since the last call if one of the old entries
// is still there, and the namespaces of the missing ones are gone. A damaged entry dates no network
// if its file name may mean several.
func (c *cache) follow(last *cache, lives living) {
	for file, e := range last.entries {
		if _, still := c.entries[file]; !still {
			for _, at := range append(e.attachments, podsource.Attachment{Network: anyNetwork}) {
				if may, _ := e.claims(lives); may { // it was removed, and perhaps others with it
					delete(last.since, at.Network)
				}
			}
		}
	}
	for file, e := range c.entries {
		for _, network := range []string{anyNetwork, e.attachments[0].Network} {
			at := e.made
			if old, goesOn := last.since[network]; goesOn && last.entries[file].made.Equal(at) && old.Before(at) {
				at = old
			}
			if oldest, has := c.since[network]; (len(e.attachments) == 1 || network == anyNetwork) && (!has || at.Before(oldest)) {
				c.since[network] = at
			}
		}
	}
}

// claims reports whether an entry's container may be live, and whether that is certain: it is if
// one of its paths surely lives, or all are surely gone.
func (e *entry) claims(lives living) (may, sure bool) {
	sure = len(e.paths) > 0
	for _, path := range e.paths {
		pathLives, pathSure := lives(path, e.made)
		if pathLives && pathSure {
			return true, true
		}
		sure = sure && pathSure
	}
	return !sure, sure
}

// pod returns the pod of an entry, and whether it may be live.
func (e *entry) pod(lives living) (p podsource.Pod, may bool) {
	may, sure := e.claims(lives)
	p.Origin, p.Unproven = e.origin, !sure
	for _, a := range e.attachments {
		p.ContainerIDs = append(p.ContainerIDs, a.ContainerID)
	}
	if sure {
		p.IPs, p.Network = e.ips, e.attachments[0].Network
	} else { // gc decides whether its time is from before the boot
		p.StartedAt = e.made
	}
	return p, may
}
