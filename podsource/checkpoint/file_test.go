// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// withChecksum returns a file with a record's JSON and the right checksum.
func withChecksum(format, record string) string {
	return fmt.Sprintf(`{"format":%q,"crc32":%d,"record":%s}`, format, crc32.ChecksumIEEE([]byte(record)), record)
}

// A file with another format, or one that is not in its format, is refused: by readers and writers, also with a fallback, without a
// release, and as it was. If there is none, as after a person has moved it away, the fallback is asked.
//
// Guard: [decode] accepts only [Format], and no unknown field of the record. [Checkpoint.Pods] and [Source.Pods] return
// [podsource.ErrNotHere] only if there is no file.
func TestHazard26RecordUnknownOrDamaged(t *testing.T) {
	const a = `{"network":"podnet","containerID":"a","ifName":"eth0","ips":[],"time":"2025-03-01T12:00:00Z"}`
	as := func(id string) string { return strings.Replace(a, `"a"`, `"`+id+`"`, 1) }
	of := func(entries ...string) string {
		return withChecksum(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[`+strings.Join(entries, ",")+`]}`)
	}
	rest := func(rest string) string { return withChecksum(Format, `{"bootID":""`+rest+`}`) }
	if _, err := decode([]byte(of(a, as("b")))); err != nil {
		t.Fatalf("the file that the rows change is invalid: %v", err)
	}
	n, fallback := newNode(t, "a", "known-to-runtime", "leaked"), podsource.Static{{ContainerIDs: []string{"known-to-runtime"}}}
	for _, row := range []struct {
		reason, content string
		is              error
		says            string
	}{
		{"the next version", withChecksum("hostlocal-gc/attachments/5", `{"bootID":"","attachments":[]}`), ErrVersion, "attachments/5"},
		{"another program's file", `{"format":"theirs"}`, ErrVersion, Format},
		{"no format, and the rest is right", strings.Replace(of(a), "format", "other", 1), ErrCorrupt, "format"},
		{"empty, as after a power loss", "", ErrCorrupt, "end of JSON"},
		{"zeros, as after a power loss", strings.Repeat("\x00", 512), ErrCorrupt, "invalid character"},
		{"null", `null`, ErrCorrupt, "format"},
		{"something after the end", of(a) + "{}", ErrCorrupt, "after top-level value"},
		{"no record", `{"format":"` + Format + `"}`, ErrCorrupt, "EOF"},
		{"a wrong sum", strings.Replace(of(a), `"containerID":"a"`, `"containerID":"b"`, 1), ErrCorrupt, "checksum"},
		{"no list of attachments", rest(`,"written":"2025-03-01T12:00:00Z"`), ErrCorrupt, "list of attachments"},
		{"null for the record", withChecksum(Format, "null"), ErrCorrupt, "list of attachments"},
		{"an unknown field, which the next change would lose",
			rest(`,"written":"2025-03-01T12:00:00Z","attachments":[],"new":1`), ErrCorrupt, "unknown field"},
		{"the same attachment twice", of(a, a), ErrCorrupt, "attachment 2 "},
		{"... and another one between", of(a, as("b"), a), ErrCorrupt, "attachment 3 "},
		{"the second attachment without container ID, and more", of(a, as(""), as("")), ErrCorrupt, "attachment 2: "},
		{"no time of writing", rest(`,"attachments":[]`), ErrCorrupt, "time"},
		{"written before the boot", rest(`,"written":"2025-03-01T12:00:00Z","sinceBoot":-1,"attachments":[]`), ErrCorrupt, "time"},
		{"an invalid address", of(strings.Replace(a, `[]`, `["10.0.0.256"]`, 1)), ErrCorrupt, "10.0.0.256"},
		{"an empty address", of(strings.Replace(a, `[]`, `[""]`, 1)), ErrCorrupt, "attachment 1: "},
		{"a directory", "", syscall.EISDIR, "is a directory"},
		{"missing", "", podsource.ErrNotHere, "no such file"},
	} {
		path := newPath(t)
		switch row.reason {
		case "missing":
		case "a directory":
			must(t, os.Mkdir(path, 0o755))
		default:
			write(t, path, row.content)
		}
		source, errs, left := reader(t, path, served), make(map[string]error), []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"}
		_, errs["reader"] = source.Pods(t.Context())
		_, passErr := n.reconciler(podsource.Fallback(source, fallback)).Reconcile(t.Context())
		if row.is == podsource.ErrNotHere {
			must(t, passErr)
			left = left[1:2]
		} else if _, errs["writer"] = Open(path, served); !errors.Is(passErr, gc.ErrRefused) {
			t.Errorf("%s: a pass with a fallback: %v", row.reason, passErr)
		}
		same(t, row.reason+": left", left, n.left())
		for who, err := range errs {
			for _, is := range []error{ErrVersion, ErrCorrupt, podsource.ErrNotHere, syscall.EISDIR} {
				says := fmt.Sprint(err)
				if errors.Is(err, is) != (is == row.is) || !strings.Contains(says, row.says) || !strings.Contains(says, path+": ") {
					t.Errorf("%s: %s: %v, want %v with %q", row.reason, who, err, row.is, row.says)
				}
			}
		}
		if row.is == ErrVersion || row.is == ErrCorrupt {
			same(t, row.reason+": the file", row.content, string(read(t, path)))
		}
	}
}

// checkDecode returns the record in content, which does not change when it is encoded again, or nil after an error.
func checkDecode(t *testing.T, what string, content []byte) *record {
	t.Helper()
	r, err := decode(content)
	if err != nil {
		if r != nil || !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Errorf("%s: %v, %v", what, r, err)
		}
		return nil
	}
	again, err := encode(*r)
	must(t, err)
	back, err := decode(again)
	must(t, err)
	same(t, what, r, back)
	return r
}

// A truncated file is damaged, whatever its length. With a flipped bit in the boot ID or in a container ID, addresses of live
// containers would be released. Outside of the record a flipped bit may change nothing, as in the letter case of a key.
//
// Guard: [decode] compares [document.Sum].
func TestHazard26EveryByte(t *testing.T) {
	content := written(t, ofBoot("5c7b9a1e"), entry("a", "10.0.0.2"))
	whole := checkDecode(t, "whole", content)
	for i := range content {
		if checkDecode(t, "truncated", content[:i]) != nil {
			t.Errorf("the first %d bytes are a record", i)
		}
		for bit := range 8 {
			flipped := slices.Clone(content)
			flipped[i] ^= 1 << bit
			if r := checkDecode(t, "flipped", flipped); r != nil {
				same(t, fmt.Sprintf("bit %d of byte %d", bit, i), whole, r)
			}
		}
	}
}

// FuzzDecode: any bytes are a record or an error.
func FuzzDecode(f *testing.F) {
	f.Add(written(f, ofBoot("5c7b9a1e"), entry("a", "10.0.0.2"), entry("b", "fd00::2")))
	for _, record := range []string{
		`{"bootID":"\u2028","written":"2025-03-01T12:00:00Z","attachments":[{"network":"n","containerID":"a","ifName":"e",` +
			`"ips":["::ffff:10.0.0.1","fe80::1%eth0"],"netns":{"path":"x","inode":1}}]}`,
		`{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[null]}`, `{"bootid":"","WRITTEN":"2025-03-01T12:00:00Z","ATTACHMENTS":[]}`,
	} {
		f.Add([]byte(record))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		checkDecode(t, "as a file", content)
		checkDecode(t, "as a record with the right checksum, which a fuzzer does not find", []byte(withChecksum(Format, string(content))))
	})
}
