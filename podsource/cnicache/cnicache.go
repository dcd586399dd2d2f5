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
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// DefaultDir is where libcni keeps results unless its caller says otherwise (cni,
// libcni CacheDir).
const DefaultDir = "/var/lib/cni/results"

// Options say where the caches are, and who knows which namespaces live.
type Options struct {
	// Dirs are the directories with results. None is [DefaultDir] alone. One that
	// does not exist is empty.
	Dirs []string
	// Living gives a function that reports whether the network namespace lives
	// that somebody called by a path at a time, and, of an empty path, whether
	// that time is since the node's boot. It is that of a source of package netns,
	// and must be given.
	Living func(context.Context) (func(path string, at time.Time) bool, error)
}

// A Source reads caches of CNI results. It keeps nothing between two calls of
// Pods.
type Source struct {
	dirs   []string
	living func(context.Context) (func(path string, at time.Time) bool, error)
}

// New returns a source and touches nothing. Without Living, or with a directory
// that is not an absolute path, it is an error.
func New(opts Options) (*Source, error) {
	if opts.Living == nil {
		return nil, errors.New("reading CNI caches: nobody tells which network namespaces live; give the method of a netns source")
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
	return &Source{dirs, opts.Living}, nil
}

// Rank returns [podsource.RankCache]: an ADD that is not under way any more when
// the cache is read has its entry.
func (*Source) Rank() podsource.Rank { return podsource.RankCache }

// Pods returns one pod for each entry that lives, and records all entries. A
// directory that can't be read is an error. A pass costs three system calls an
// entry, and what it takes to parse its JSON.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{
		Source: "cnicache", Supplementary: true,
		Names: []podsource.Names{{Form: podsource.AnyForm}}, Recorded: []podsource.Attachment{},
	}
	lives, err := s.living(ctx)
	if err != nil {
		return podsource.Answer{Source: a.Source}, fmt.Errorf("reading CNI caches: which network namespaces live is not known: %w", err)
	}
	for _, dir := range s.dirs {
		if err := readDir(ctx, dir, lives, &a); err != nil {
			return podsource.Answer{Source: a.Source}, fmt.Errorf("reading the CNI cache %s: %w", dir, err)
		}
	}
	return a, nil
}

// readDir adds the entries of a directory to an answer.
func readDir(ctx context.Context, dir string, lives func(string, time.Time) bool, a *podsource.Answer) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(dir, f.Name())
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() { // its DEL came; what is no file is no entry
			continue
		}
		made := time.Now() // in doubt it is of this boot
		var e entry
		if err == nil {
			made = info.ModTime()
			e, err = readEntry(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			e = entry{containerIDs: idsInName(f.Name())}
		}
		if e.network != "" {
			for _, id := range e.containerIDs {
				a.Recorded = append(a.Recorded, podsource.Attachment{Network: e.network, ContainerID: id})
			}
		}
		if p, ok := e.pod(path, made, lives); ok {
			a.Pods = append(a.Pods, p)
		}
	}
	return nil
}

// pod returns what an entry claims, if it does.
func (e *entry) pod(path string, made time.Time, lives func(string, time.Time) bool) (podsource.Pod, bool) {
	p := podsource.Pod{ContainerIDs: e.containerIDs, Origin: "CNI cache " + path}
	if len(e.containerIDs) == 0 {
		return p, false
	}
	if len(e.paths) == 0 {
		p.Unproven = true
		return p, lives("", made)
	}
	p.IPs, p.Network = e.ips, e.network
	return p, slices.ContainsFunc(e.paths, func(path string) bool { return lives(path, made) })
}
