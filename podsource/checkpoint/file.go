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

// Format is the stamp of the files that this package reads and writes.
const Format = "hostlocal-gc/attachments/2"

var (
	// ErrVersion is returned, wrapped, when a file has another stamp than
	// [Format].
	ErrVersion = errors.New("record of attachments has an unknown format")
	// ErrCorrupt is returned, wrapped, when a file is not whole, or not what its
	// stamp says.
	ErrCorrupt = errors.New("record of attachments is damaged")
)

// maxSize bounds what is read: about a thousand times what a large node has.
const maxSize = 256 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A document is a file's outer form. The sum is taken over the bytes of the
// record: a wrong boot ID or container ID in it would cost live addresses.
type document struct {
	Format string          `json:"format"`
	Sum    string          `json:"crc32c"`
	Record json.RawMessage `json:"record"`
}

type record struct {
	BootID string `json:"bootID"`
	// When it was written, by the wall clock and since the boot; zero is unknown.
	Written   time.Time     `json:"written"`
	SinceBoot time.Duration `json:"sinceBoot"`
	// Gaps are when nobody kept it, see gapsSince.
	Gaps    []podsource.Gap `json:"gaps,omitempty"`
	Entries []Entry         `json:"attachments"`
}

// An item is an entry and what it is in the file, made once: a change writes all
// of them.
type item struct {
	Entry
	line []byte
}

func newItem(e Entry) (*item, error) {
	line, err := json.Marshal(&e)
	return &item{e, line}, err
}

// copy is for callers, who may change what they get.
func (i *item) copy() Entry {
	e := i.Entry
	e.IPs = slices.Clone(e.IPs)
	return e
}

// encode makes a file of a record that has items for Entries, one a line for people
// and their tools.
func encode(r record, items []*item) ([]byte, error) {
	r.Entries = []Entry{}
	frame, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	frame, end := frame[:len(frame)-len("]}")], "\n]}"
	const room = 128 // for what is not a line
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

// decode takes all of a file, or nothing of it. Its errors wrap ErrVersion or
// ErrCorrupt.
func decode(content []byte) (*record, error) {
	corrupt := func(err error) (*record, error) { return nil, fmt.Errorf("%w: %w", ErrCorrupt, err) }
	var stamp struct{ Format string }
	if err := json.Unmarshal(content, &stamp); err != nil {
		return corrupt(err)
	}
	switch stamp.Format {
	case Format:
	case "":
		return corrupt(errors.New("it bears no stamp of its format"))
	default:
		return nil, fmt.Errorf("%w: %q, and this program knows %q", ErrVersion, stamp.Format, Format)
	}
	var doc document
	if err := decodeStrict(content, &doc); err != nil {
		return corrupt(err)
	}
	if sum := fmt.Sprintf("%08x", crc32.Checksum(doc.Record, castagnoli)); sum != doc.Sum {
		return corrupt(fmt.Errorf("its checksum is %s, and it says %q", sum, doc.Sum))
	}
	var r record
	if err := decodeStrict(doc.Record, &r); err != nil {
		return corrupt(err)
	}
	if r.Entries == nil {
		return corrupt(errors.New("it lists no attachments, not even none"))
	}
	if r.Written.IsZero() || r.SinceBoot < 0 {
		return corrupt(errors.New("it does not say when it was written"))
	}
	for i := range r.Entries {
		if err := r.Entries[i].check(); err != nil {
			return corrupt(fmt.Errorf("attachment %d: %w", i+1, err))
		}
	}
	slices.SortStableFunc(r.Entries, func(a, b Entry) int { return a.compare(b.Key) })
	for i := range r.Entries[min(1, len(r.Entries)):] {
		if r.Entries[i].Key == r.Entries[i+1].Key {
			return corrupt(fmt.Errorf("it has %s twice", r.Entries[i].Key))
		}
	}
	return &r, nil
}

// decodeStrict decodes what is known to be one JSON value, if nothing in it is
// unknown.
func decodeStrict(content []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// load reads a file, as of the given boot of the node: of another boot it is empty.
// It is fs.ErrNotExist where there is none.
func load(path, bootID string) (r *record, sameBoot bool, err error) {
	// Opening a pipe of that name would wait for ever for a writer.
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist) && isLink(path):
		// Not %w: whoever made the link meant a file.
		return nil, false, fmt.Errorf("reading the record of attachments: it is a link to nothing: %v", err) //nolint:errorlint // see above
	case err != nil:
		return nil, false, fmt.Errorf("reading the record of attachments: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxSize:
		return nil, false, fmt.Errorf("reading %s: %w: a file of mode %s and %d bytes can't be one; move it away",
			path, ErrCorrupt, info.Mode(), info.Size())
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, false, fmt.Errorf("reading the record of attachments: %w", err)
	}
	if r, err = decode(content); err != nil {
		return nil, false, fmt.Errorf("reading %s: %w; it is left as it is: move it away, and the next start begins a new record with Backfill", path, err)
	}
	// A boot ID that is not known is not another one.
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

// replace gives the file at path new content: all of it or none, and so that it
// lasts. With an error the old content stands, unless renamed: then the new one
// stands, and may not survive a power loss.
func replace(path string, content []byte) (renamed bool, err error) {
	// Opened first: once the file has its name, only the disk can fail.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return false, err
	}
	defer func() { _ = dir.Close() }() // only read from
	temp := path + ".tmp"
	err = create(temp, content)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // the next one does it, or fails
		return false, err
	}
	return true, dir.Sync()
}

// create makes a new file, what a crash left under its name aside.
func create(path string, content []byte) error {
	_ = os.Remove(path) // what stays is an error of the next step
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

// removeIfExists removes what a commit that did not end has left.
func removeIfExists(temp string) error {
	if err := os.Remove(temp); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
