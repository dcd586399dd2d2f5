// SPDX-License-Identifier: Apache-2.0

package cnicache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	// path at a time still exists, and whether that is certain. It is the method of a
	// source of package netns, and must be set.
	Living func(context.Context) (func(path string, at time.Time) (lives, sure bool), error)
}

// A Source reads caches of CNI results. Keep one for the life of the process: it
// remembers the records of the last call, and so since when a cache was not wiped.
type Source struct {
	dirs   []string
	living func(context.Context) (func(path string, at time.Time) (lives, sure bool), error)

	mu     sync.Mutex // guards caches
	caches []cache    // by the indexes of dirs
}

// A cache has the records that the last call found in a directory.
type cache struct {
	records map[string]record // by file name
	since   time.Time         // since when the directory was not wiped
}

// A record is a file of the cache.
type record struct {
	entry
	made time.Time // when it was written
}

// next returns the cache with new records. The directory was not wiped if one of the old
// records is still there, and the namespaces of the missing ones are gone.
func (c *cache) next(records map[string]record, lives living) cache {
	since, goesOn := time.Time{}, false
	for file, r := range records {
		before, had := c.records[file]
		goesOn = goesOn || had && before.made.Equal(r.made)
		if since.IsZero() || r.made.Before(since) {
			since = r.made
		}
	}
	for file, r := range c.records {
		if _, still := records[file]; !still && goesOn {
			may, sure := r.claims(r.made, lives)
			goesOn = sure && !may
		}
	}
	if goesOn && c.since.Before(since) {
		since = c.since
	}
	return cache{records, since}
}

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

// Pods returns one pod for each entry that may be live; all entries are in the answer's
// Cache. A directory that can't be read is an error. Each entry takes three system calls and
// the parsing of its JSON.
//
// If several directories exist, the cache's Since is the latest of theirs, because any of
// them may have been wiped.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{
		Source: "cnicache", Supplementary: true,
		Names: podsource.AnyContainer, AtOnce: true, Cache: new(podsource.Cache),
	}
	lives, err := s.living(ctx)
	if err != nil {
		return podsource.Answer{Source: a.Source}, fmt.Errorf("reading CNI caches: which network namespaces live is not known: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var notes []string
	for i, dir := range s.dirs {
		records, err := readDir(ctx, dir, lives, &a)
		if err != nil {
			return podsource.Answer{Source: a.Source}, fmt.Errorf("reading the CNI cache %s: %w", dir, err)
		}
		switch {
		case records == nil:
			notes = append(notes, fmt.Sprintf("the directory %s does not exist", dir))
		case len(records) == 0:
			notes = append(notes, fmt.Sprintf("%s holds no record; is it the directory of this node's runtime?", dir))
		}
		if s.caches[i] = s.caches[i].next(records, lives); records != nil && len(records) == 0 {
			if s.caches[i].since, err = emptySince(dir); err != nil {
				return podsource.Answer{Source: a.Source}, fmt.Errorf("reading the CNI cache: %w", err)
			}
		}
		if since := s.caches[i].since; since.After(a.Cache.Since) {
			a.Cache.Since = since
		}
	}
	if len(notes) == len(s.dirs) { // else some directory has records, and the others may be unused
		a.Note = strings.Join(notes, "; ")
	}
	return a, nil
}

// readDir adds the entries of a directory to an answer, and returns its records, or nil if
// there is no such directory.
func readDir(ctx context.Context, dir string, lives living, a *podsource.Answer) (map[string]record, error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	records := make(map[string]record, len(files))
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		path := filepath.Join(dir, f.Name())
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() { // after its DEL; or not an entry
			continue
		}
		made := time.Now() // if unknown, it counts as of this boot
		var e entry
		if err == nil {
			made = info.ModTime()
			e, err = readEntry(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			e = entry{attachments: inName(f.Name()), damaged: true}
		}
		if len(e.attachments) > 0 {
			records[f.Name()] = record{e, made}
		}
		p, may := e.pod(path, made, lives)
		for _, at := range e.attachments {
			a.Cache.Entries = append(a.Cache.Entries, podsource.Attachment{Network: at.network, ContainerID: at.containerID})
		}
		if may {
			a.Pods = append(a.Pods, p)
		}
	}
	return records, nil
}

// emptySince returns when the last record of an empty directory was removed: the time of its
// last change.
func emptySince(dir string) (time.Time, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// living is the function that Options.Living returns.
type living = func(path string, at time.Time) (lives, sure bool)

// claims reports whether an entry's container may be live, and whether that is certain: it is if
// one of its paths surely lives, or all are surely gone.
func (e *entry) claims(made time.Time, lives living) (may, sure bool) {
	sure = len(e.paths) > 0
	for _, path := range e.paths {
		pathLives, pathSure := lives(path, made)
		if pathLives && pathSure {
			return true, true
		}
		may, sure = may || pathLives, sure && pathSure
	}
	return may || !sure, sure
}

// pod returns the pod of an entry, and whether it may be live.
func (e *entry) pod(path string, made time.Time, lives living) (podsource.Pod, bool) {
	p := podsource.Pod{Origin: "CNI cache " + path}
	if e.damaged {
		p.Origin += ", which is damaged"
	}
	for _, a := range e.attachments {
		p.ContainerIDs = append(p.ContainerIDs, a.containerID)
	}
	if len(e.attachments) == 0 {
		return p, false
	}
	may, sure := e.claims(made, lives)
	if p.Unproven = !sure; sure {
		p.IPs, p.Network = e.ips, e.attachments[0].network
	} else { // gc decides whether its time is from before the boot
		p.StartedAt = made
	}
	return p, may
}
