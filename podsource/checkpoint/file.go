// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// Format is the format of the files that this package reads and writes.
const Format = "hostlocal-gc/attachments/5"

// ErrVersion is returned, wrapped, if a file has another format than [Format]. A version that adds a
// field has another one.
var ErrVersion = errors.New("record of attachments has an unknown format")

// ErrCorrupt is returned, wrapped, if a file is incomplete, not in its format, or has an unknown field.
var ErrCorrupt = errors.New("record of attachments is damaged")

// A document is the file, with a checksum of the record's bytes: with a wrong boot ID or container
// ID, addresses of live containers would be released.
type document struct {
	Format string          `json:"format"`
	Sum    uint32          `json:"crc32"`
	Record json.RawMessage `json:"record"`
}

// A record is the content of a document.
type record struct {
	BootID string `json:"bootID"`
	// Networks are Options.Networks of its writer.
	Networks []string `json:"networks"`
	// Written is the wall clock when it was written, and SinceBoot the time since the
	// boot, zero if unknown.
	Written   time.Time     `json:"written"`
	SinceBoot time.Duration `json:"sinceBoot"`
	// Stepped is the time since the boot when a step of the clock was last seen, zero being never.
	Stepped time.Duration `json:"stepped,omitzero"`
	Gap     gap           `json:"gap"`
	Entries []Entry       `json:"attachments"`
}

func encode(r record) ([]byte, error) {
	content, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return json.Marshal(document{Format, crc32.ChecksumIEEE(content), content})
}

// decode decodes a whole file. An error wraps ErrVersion or ErrCorrupt.
func decode(content []byte) (r *record, err error) {
	defer func() {
		if err != nil && !errors.Is(err, ErrVersion) {
			r, err = nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}()
	var doc document
	if err := json.Unmarshal(content, &doc); err != nil {
		return nil, err
	}
	switch {
	case doc.Format != Format && doc.Format != "":
		return nil, fmt.Errorf("%w: %q; this program reads %q", ErrVersion, doc.Format, Format)
	case doc.Format == "" || doc.Sum != crc32.ChecksumIEEE(doc.Record):
		return nil, errors.New("its format is missing, or its checksum wrong")
	}
	d := json.NewDecoder(bytes.NewReader(doc.Record))
	d.DisallowUnknownFields() // the next change would lose one
	if err := d.Decode(&r); err != nil {
		return nil, err
	}
	if r == nil || r.Entries == nil || r.Written.IsZero() || r.SinceBoot < 0 || r.Stepped < 0 {
		return nil, errors.New("its list of attachments, or one of its times, is missing or invalid")
	}
	for i, e := range r.Entries {
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("attachment %d: %w", i+1, err)
		}
		if i > 0 && r.Entries[i-1].compare(e.Key) >= 0 {
			return nil, fmt.Errorf("attachment %d is there twice, or in the wrong place", i+1)
		}
	}
	return r, nil
}

// resolve returns the path of the record's file without links. With a link's path a writer would
// replace the link, and two writers could lock different directories.
func resolve(path string) (string, error) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return filepath.EvalSymlinks(path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// load returns the state of the file, as of now. Its gap ends after lag, zero being never. If there
// is no file, the error is fs.ErrNotExist, and the state that of a new record.
func (p place) load(lag time.Duration) (*state, error) {
	var r *record
	content, err := os.ReadFile(p.path)
	if err == nil {
		if r, err = decode(content); err != nil {
			err = fmt.Errorf("%s: %w; move it away, and the next start begins a new record with Backfill", p.path, err)
		}
	}
	now, sinceBoot := time.Now(), boottime.Since()
	s := &state{entries: make(map[Key]Entry), wall: now.Round(0), mono: now, written: err == nil}
	if err != nil {
		return s, fmt.Errorf("reading the record of attachments: %w", err)
	}
	if r.BootID != p.opts.BootID && r.BootID != "" && p.opts.BootID != "" { // an unknown boot ID does not mean another boot
		r = emptySince(now, sinceBoot)
	} else if slices.ContainsFunc(p.opts.Networks, func(n string) bool { return !slices.Contains(r.Networks, n) }) {
		r.Gap = gap{To: r.Gap.To} // another server may have attached its containers at any time
	}
	s.gap, s.stepped = r.gapUntil(lag, now, sinceBoot)
	for _, e := range r.Entries {
		s.entries[e.Key] = e
	}
	return s, nil
}

// replace replaces the file at path atomically and durably. After an error the file
// has its old content, unless renamed is true: then it has the new content, which a
// power loss may undo. If the locked directory was moved, it changes nothing: a second writer may
// have opened a record there, and what that one has read must stay (hazard 96).
func replace(path string, lock *os.File, r record) (renamed bool, err error) {
	content, err := encode(r)
	if err := cmp.Or(err, held(lock)); err != nil {
		return false, err
	}
	temp := path + ".tmp"
	_ = os.Remove(temp) // of a crash; if it fails, OpenFile returns an error
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	_ = f.Close() // it is synced
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // else the next call does that
		return false, err
	}
	return true, lock.Sync()
}

// locked locks a directory, so that nobody can remove the lock without the record, until the file
// is closed or the process ends. It returns ErrLocked at once if another process has it.
func locked(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		_ = f.Close() // nothing was written through it
		return nil, &os.PathError{Op: "lock", Path: dir, Err: err}
	}
	return f, nil
}

// held returns ErrLocked if the directory that a writer has locked is not the one at its path, or if
// that is unknown.
func held(lock *os.File) error {
	held, _ := lock.Stat()
	there, _ := os.Lstat(lock.Name())
	if !os.SameFile(held, there) {
		return fmt.Errorf("%w: %s was moved since it was locked; open the record again", ErrLocked, lock.Name())
	}
	return nil
}
