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
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// Format is the format of the files that this package reads and writes.
const Format = "hostlocal-gc/attachments/3"

var (
	// ErrVersion is returned, wrapped, if a file has another format than [Format].
	ErrVersion = errors.New("record of attachments has an unknown format")
	// ErrCorrupt is returned, wrapped, if a file is incomplete or not in its format.
	ErrCorrupt = errors.New("record of attachments is damaged")
)

// maxSize limits the size of a file: about a thousand times that of a large node.
const maxSize = 256 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A document is the file. The checksum covers the bytes of the record: with a wrong
// boot ID or container ID, addresses of live containers would be released.
type document struct {
	Format string          `json:"format"`
	Sum    string          `json:"crc32c"`
	Record json.RawMessage `json:"record"`
}

// A record is the content of a document.
type record struct {
	BootID string `json:"bootID"`
	// Written is the wall clock when it was written, and SinceBoot the time since the
	// boot, zero if unknown.
	Written   time.Time     `json:"written"`
	SinceBoot time.Duration `json:"sinceBoot"`
	// Gaps are the times in which the record was not kept; see gapsSince.
	Gaps    []podsource.Gap `json:"gaps,omitempty"`
	Entries []Entry         `json:"attachments"`
}

// An item is an entry and its encoding. Each change writes all items, and encodes only
// the new one.
type item struct {
	Entry
	line []byte
}

func newItem(e Entry) (*item, error) {
	line, err := json.Marshal(&e)
	return &item{e, line}, err
}

// copy returns an entry that the caller may change.
func (i *item) copy() Entry {
	e := i.Entry
	e.IPs = slices.Clone(e.IPs)
	return e
}

// encode encodes a record with items as its Entries, one per line for people and line
// tools.
func encode(r record, items []*item) ([]byte, error) {
	r.Entries = []Entry{}
	frame, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	frame, end := frame[:len(frame)-len("]}")], "\n]}"
	const room = 128 // for everything except the lines
	size := room + len(frame)
	for _, i := range items {
		size += len(",\n") + len(i.line)
	}
	head := fmt.Sprintf(`{"format":%q,"crc32c":"00000000","record":`, Format)
	out := append(make([]byte, 0, size), head...)
	out = append(out, frame...)
	for n, i := range items {
		if n > 0 {
			out = append(out, ',')
		}
		out = append(append(out, '\n'), i.line...)
	}
	out = append(out, end...)
	sum := fmt.Sprintf("%08x", crc32.Checksum(out[len(head):], castagnoli))
	copy(out[strings.Index(head, "00000000"):], sum)
	return append(out, "}\n"...), nil
}

// decode decodes a whole file, or returns an error that wraps ErrVersion or
// ErrCorrupt.
func decode(content []byte) (*record, error) {
	corrupt := func(err error) (*record, error) { return nil, fmt.Errorf("%w: %w", ErrCorrupt, err) }
	var header struct{ Format string }
	if err := json.Unmarshal(content, &header); err != nil {
		return corrupt(err)
	}
	switch header.Format {
	case Format:
	case "":
		return corrupt(errors.New("it does not name its format"))
	default:
		return nil, fmt.Errorf("%w: %q; this program reads %q", ErrVersion, header.Format, Format)
	}
	var doc document
	if err := decodeStrict(content, &doc); err != nil {
		return corrupt(err)
	}
	if sum := fmt.Sprintf("%08x", crc32.Checksum(doc.Record, castagnoli)); sum != doc.Sum {
		return corrupt(fmt.Errorf("its checksum is %s, and should be %q", sum, doc.Sum))
	}
	var r record
	if err := decodeStrict(doc.Record, &r); err != nil {
		return corrupt(err)
	}
	if r.Entries == nil {
		return corrupt(errors.New("its list of attachments is missing"))
	}
	if r.Written.IsZero() || r.SinceBoot < 0 {
		return corrupt(errors.New("the time when it was written is missing or invalid"))
	}
	for i := range r.Entries {
		if err := r.Entries[i].check(); err != nil {
			return corrupt(fmt.Errorf("attachment %d: %w", i+1, err))
		}
	}
	slices.SortStableFunc(r.Entries, func(a, b Entry) int { return a.compare(b.Key) })
	for i := range r.Entries[min(1, len(r.Entries)):] {
		if r.Entries[i].Key == r.Entries[i+1].Key {
			return corrupt(fmt.Errorf("it lists %s twice", r.Entries[i].Key))
		}
	}
	return &r, nil
}

// decodeStrict decodes content, one valid JSON value. An unknown field is an error.
func decodeStrict(content []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// load reads a record for the given boot of the node: a record of another boot is
// empty. If there is no file, the error is fs.ErrNotExist.
func load(path, bootID string) (r *record, sameBoot bool, err error) {
	// Stat first: opening a pipe would block.
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist) && isLink(path):
		// Not %w: a link to a missing file is not a record that was never written.
		return nil, false, fmt.Errorf("reading the record of attachments: it is a link to a missing file: %v", err) //nolint:errorlint // see above
	case err != nil:
		return nil, false, fmt.Errorf("reading the record of attachments: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxSize:
		return nil, false, fmt.Errorf("reading %s: %w: a file of mode %s and %d bytes can't be a record; move it away",
			path, ErrCorrupt, info.Mode(), info.Size())
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, false, fmt.Errorf("reading the record of attachments: %w", err)
	}
	if r, err = decode(content); err != nil {
		return nil, false, fmt.Errorf("reading %s: %w; move it away, and the next start begins a new record with Backfill", path, err)
	}
	// An unknown boot ID does not mean another boot.
	if r.BootID != bootID && r.BootID != "" && bootID != "" {
		r.Entries = []Entry{}
		return r, false, nil
	}
	return r, true, nil
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// replace replaces the file at path atomically and durably. After an error the file
// has its old content, unless renamed is true: then it has the new content, which a
// power loss may undo.
func replace(path string, content []byte) (renamed bool, err error) {
	// Opened first: after the rename only the disk can fail.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return false, err
	}
	defer func() { _ = dir.Close() }() // nothing was written through it
	temp := path + ".tmp"
	err = create(temp, content)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // otherwise the next create removes it, or returns an error
		return false, err
	}
	return true, dir.Sync()
}

// create writes a new file, and replaces one that a crash left.
func create(path string, content []byte) error {
	_ = os.Remove(path) // if it fails, OpenFile returns an error
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// removeIfExists removes the temporary file of a commit that did not end.
func removeIfExists(temp string) error {
	if err := os.Remove(temp); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
