// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Format is the format of the files that this package reads and writes.
const Format = "hostlocal-gc/attachments/4"

// ErrVersion is returned, wrapped, if a file has another format than [Format].
var ErrVersion = errors.New("record of attachments has an unknown format")

// ErrCorrupt is returned, wrapped, if a file is incomplete or not in its format.
var ErrCorrupt = errors.New("record of attachments is damaged")

// A document is the file. The checksum covers the bytes of the record: with a wrong
// boot ID or container ID, addresses of live containers would be released.
type document struct {
	Format string          `json:"format"`
	Sum    uint32          `json:"crc32"`
	Record json.RawMessage `json:"record"`
}

// A record is the content of a document.
type record struct {
	BootID string `json:"bootID"`
	// Written is the wall clock when it was written, and SinceBoot the time since the
	// boot, zero if unknown.
	Written   time.Time     `json:"written"`
	SinceBoot time.Duration `json:"sinceBoot"`
	// Stepped is the time since the boot when a step of the clock was last seen, zero being never.
	Stepped time.Duration `json:"stepped,omitzero"`
	Gap     gap           `json:"gap"`
	Entries []Entry       `json:"attachments"`
}

// encode encodes a whole file.
func encode(r record) ([]byte, error) {
	content, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return json.Marshal(document{Format, crc32.ChecksumIEEE(content), content})
}

// decode decodes a whole file, or returns an error that wraps ErrVersion or
// ErrCorrupt.
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

// resolve returns the path of the record's file without links. A writer replaces the
// file and locks another one beside it. With a link's path it would replace the link,
// and two writers could have different locks.
func resolve(path string) (string, error) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return filepath.EvalSymlinks(path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// load reads a record for the given boot of the node: a record of another boot is
// empty. If there is no file, the error is fs.ErrNotExist.
func load(path, bootID string) (r *record, sameBoot bool, err error) {
	content, err := os.ReadFile(path)
	if err == nil {
		r, err = decode(content)
	}
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrVersion) {
		err = fmt.Errorf("%s: %w; move it away, and the next start begins a new record with Backfill", path, err)
	}
	if err != nil {
		return nil, false, fmt.Errorf("reading the record of attachments: %w", err)
	}
	sameBoot = r.BootID == bootID || r.BootID == "" || bootID == "" // an unknown boot ID does not mean another boot
	if !sameBoot {
		r.Entries = nil
	}
	return r, sameBoot, nil
}

// replace replaces the file at path atomically and durably. After an error the file
// has its old content, unless renamed is true: then it has the new content, which a
// power loss may undo.
//
// It locks the directory, as Open does, and checks then that the writer's lock file is still the one
// at its path. So if somebody removed that file and a second writer has opened the record, the first
// one can't replace what the second one has read (hazard 96).
func replace(path string, lock *os.File, content []byte) (renamed bool, err error) {
	dir, err := locked(filepath.Dir(path), os.O_RDONLY, directoryWait) // also opened first: after the rename only the disk can fail
	if err != nil {
		return false, err
	}
	defer func() { _ = dir.Close() }() // nothing was written through it
	if err := held(lock); err != nil {
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
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // else the next call does that
		return false, err
	}
	return true, dir.Sync()
}

// directoryWait is how long a directory may be locked: each writer of a record in it locks it for
// a commit, but anyone who can read it can do so, too.
const directoryWait = 5 * time.Second

// locked opens and locks a file or a directory. It returns ErrLocked at once, or another error
// if it has to wait for so long. The kernel releases the lock when the file is closed, also by the end of the process.
func locked(path string, flag int, wait time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, err
	}
	err = flock(f)
	for end := time.Now().Add(wait); errors.Is(err, ErrLocked) && time.Now().Before(end); err = flock(f) {
		<-time.After(5 * time.Millisecond)
	}
	if wait > 0 && errors.Is(err, ErrLocked) {
		err = fmt.Errorf("another process has held that for %v; find it with lslocks(8), and let nobody else read the directory", wait)
	}
	if err != nil {
		_ = f.Close() // nothing was written through it
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return f, nil
}

// held returns ErrLocked if a writer's lock file is not the one at its path, or if that is unknown.
func held(lock *os.File) error {
	held, _ := lock.Stat()
	there, _ := os.Lstat(lock.Name())
	if !os.SameFile(held, there) {
		return fmt.Errorf("%w: %s was removed since it was locked; open the record again", ErrLocked, lock.Name())
	}
	return nil
}
