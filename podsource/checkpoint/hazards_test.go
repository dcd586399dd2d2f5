// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// fallbackRuntime is the fallback of the record. It lists a container that is not
// recorded, and not the one that is.
var fallbackRuntime = podsource.Static{{ContainerIDs: []string{"known-to-runtime"}}}

// nodeWithLeak makes a node with a recorded container, one that the runtime lists, and a
// leak. It returns a path for the record, too.
func nodeWithLeak(t *testing.T) (n *node, path string) {
	t.Helper()
	n = newNode(t, t.TempDir())
	n.reserve("10.0.0.2", "a")
	n.reserve("10.0.0.3", "known-to-runtime")
	n.reserve("10.0.0.4", "leaked")
	return n, filepath.Join(t.TempDir(), "attachments")
}

// checkRefused checks that readers and writers return the error is for a file, and not
// podsource.ErrNotHere, that the file does not change, and that a pass releases
// nothing.
func checkRefused(t *testing.T, n *node, path string, is error) {
	t.Helper()
	before, beforeErr := os.ReadFile(path)
	_, readErr := reader(t, path, served).Pods(t.Context())
	c, openErr := Open(path, served)
	if c != nil {
		t.Error("Open returned a writer beside the error")
	}
	passErr := n.pass(podsource.Fallback(reader(t, path, served), fallbackRuntime), gc.Options{})
	for who, err := range map[string]error{"reader": readErr, "writer": openErr, "pass": passErr} {
		if !errors.Is(err, is) || errors.Is(err, podsource.ErrNotHere) {
			t.Errorf("%s: %v, want %v", who, err, is)
			continue
		}
		for _, words := range []string{path, "move it away"} {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %q does not say %q", who, err, words)
			}
		}
	}
	if left := n.left(); len(left) != 3 {
		t.Errorf("addresses were released; left: %v", left)
	}
	if after, err := os.ReadFile(path); string(after) != string(before) || (err == nil) != (beforeErr == nil) {
		t.Errorf("the file was changed from %q to %q", before, after)
	}
}

// If there is no record, the fallback is asked.
//
// Guard: [Checkpoint.Pods] and [Source.Pods] return [podsource.ErrNotHere] if there is no
// file.
func TestHazard26RecordMissing(t *testing.T) {
	n, path := nodeWithLeak(t)
	if got, err := reader(t, path, served).Pods(t.Context()); !errors.Is(err, podsource.ErrNotHere) || got.Authoritative {
		t.Errorf("a reader: %+v, %v, want %v", got, err, podsource.ErrNotHere)
	}
	if err := n.pass(podsource.Fallback(reader(t, path, served), fallbackRuntime), gc.Options{DryRun: true}); err != nil {
		t.Errorf("a reader: %v", err)
	}
	c := opened(t, path, served)
	if err := n.pass(podsource.Fallback(c, fallbackRuntime), gc.Options{}); err != nil {
		t.Errorf("a writer: %v", err)
	}
	if diff := cmp.Diff([]string{"10.0.0.3"}, n.left()); diff != "" {
		t.Errorf("left after a pass with the fallback (-want +got):\n%s", diff)
	}
	if err := n.pass(c, gc.Options{}); !errors.Is(err, gc.ErrRefused) || !strings.Contains(err.Error(), "never written") {
		t.Errorf("without a fallback: %v, want that it was never written", err)
	}
	if diff := cmp.Diff([]string{"10.0.0.3"}, n.left()); diff != "" {
		t.Errorf("left after an error (-want +got):\n%s", diff)
	}
}

// A truncated file is damaged, whatever its length.
//
// Guard: [decode] decodes the whole file or returns an error.
func TestHazard26RecordTruncatedAtEveryByte(t *testing.T) {
	content := written(t, served, entry("a", "10.0.0.2"))
	n, path := nodeWithLeak(t)
	for size := range len(content) - 1 { // the last newline is not needed
		write(t, path, string(content[:size]))
		checkRefused(t, n, path, ErrCorrupt)
		if t.Failed() {
			t.Fatalf("at %d of %d bytes", size, len(content))
		}
	}
	write(t, path, string(content))
	if err := n.pass(reader(t, path, served), gc.Options{}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.2"}, n.left()); diff != "" {
		t.Errorf("the whole file (-want +got):\n%s", diff)
	}
}

// With a flipped bit in the boot ID or in a container ID, addresses of live containers
// would be released. Outside of the record a flipped bit may change nothing, as in the
// letter case of a key.
//
// Guard: [decode] compares [document.Sum].
func TestHazard26EveryBitTurned(t *testing.T) {
	content := written(t, ofBoot("5c7b9a1e"), entry("a", "10.0.0.2"))
	whole, err := decode(content)
	if err != nil {
		t.Fatal(err)
	}
	for i := range content {
		for bit := range 8 {
			content[i] ^= 1 << bit
			got, err := decode(content)
			if err == nil {
				if diff := cmp.Diff(whole, got, equal); diff != "" {
					t.Errorf("bit %d of byte %d (-want +got):\n%s", bit, i, diff)
				}
			} else if got != nil || !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Errorf("bit %d of byte %d: %v, %v", bit, i, got, err)
			}
			content[i] ^= 1 << bit
		}
	}
}

// withChecksum returns a file with a record's JSON and the right checksum.
func withChecksum(format, record string) string {
	return fmt.Sprintf(`{"format":%q,"crc32":%d,"record":%s}`, format, crc32.ChecksumIEEE([]byte(record)), record)
}

// A file with another format, or one that is not in its format, is refused, and a person
// moves it away.
//
// Guard: [decode] accepts only [Format], and [decodeStrict] no unknown field.
func TestHazard26RecordUnknownOrDamaged(t *testing.T) {
	const a = `{"network":"podnet","containerID":"a","ifName":"eth0","ips":[],"time":"2025-03-01T12:00:00Z"}`
	of := func(entries string) string {
		return withChecksum(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[`+entries+`]}`)
	}
	b := strings.Replace(a, `"a"`, `"b"`, 1)
	if _, err := decode([]byte(of(a + "," + b))); err != nil {
		t.Fatalf("the file that the rows change is invalid: %v", err)
	}
	for _, row := range []struct {
		reason, content string
		is              error
	}{
		{"the next version", withChecksum("hostlocal-gc/attachments/5", `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[]}`), ErrVersion},
		{"the next version, with other fields", `{"format":"hostlocal-gc/attachments/5","pages":7}`, ErrVersion},
		{"another program's file", `{"format":"theirs"}`, ErrVersion},
		{"no format", `{}`, ErrCorrupt},
		{"a format that is not a string", `{"format":1}`, ErrCorrupt},
		{"empty, as after a power loss", "", ErrCorrupt},
		{"zeros, as after a power loss", strings.Repeat("\x00", 512), ErrCorrupt},
		{"null", `null`, ErrCorrupt},
		{"a list", `[]`, ErrCorrupt},
		{"something after the end", of(a) + "{}", ErrCorrupt},
		{"no record", `{"format":"` + Format + `"}`, ErrCorrupt},
		{"a wrong sum", strings.Replace(of(a), `"containerID":"a"`, `"containerID":"b"`, 1), ErrCorrupt},
		{"no list of attachments", withChecksum(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z"}`), ErrCorrupt},
		{"null for the list", withChecksum(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":null}`), ErrCorrupt},
		{"an unknown field, which the next change would lose", withChecksum(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[],"new":1}`), ErrCorrupt},
		{"an unknown field of an attachment", of(strings.Replace(a, "{", `{"new":1,`, 1)), ErrCorrupt},
		{"the same attachment twice", of(a + "," + a), ErrCorrupt},
		{"the same attachment twice after another one", of(a + "," + b + "," + b), ErrCorrupt},
		{"the second attachment without container ID", of(a + "," + strings.Replace(a, `"a"`, `""`, 1)), ErrCorrupt},
		{"no time of writing", withChecksum(Format, `{"bootID":"","attachments":[]}`), ErrCorrupt},
		{"written before the boot", withChecksum(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","sinceBoot":-1,"attachments":[]}`), ErrCorrupt},
		{"the same attachment twice, and another one between", of(a + "," + strings.Replace(a, `"a"`, `"b"`, 1) + "," + a), ErrCorrupt},
		{"an attachment without container ID", of(strings.Replace(a, `"a"`, `""`, 1)), ErrCorrupt},
		{"an invalid container ID", of(strings.Replace(a, `"a"`, `"\ud800"`, 1)), ErrCorrupt},
		{"an invalid address", of(strings.Replace(a, `[]`, `["10.0.0.256"]`, 1)), ErrCorrupt},
		{"an empty address", of(strings.Replace(a, `[]`, `[""]`, 1)), ErrCorrupt},
		{"null for an attachment", of("null"), ErrCorrupt},
		{"too deeply nested", of(strings.Repeat("[", 1<<15)), ErrCorrupt},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n, path := nodeWithLeak(t)
			write(t, path, row.content)
			checkRefused(t, n, path, row.is)
			// A person moves the file away.
			if err := os.Rename(path, path+".aside"); err != nil {
				t.Fatal(err)
			}
			c := opened(t, path, served)
			if err := n.pass(podsource.Fallback(c, fallbackRuntime), gc.Options{}); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{"10.0.0.3"}, n.left()); diff != "" {
				t.Errorf("left after the file was moved away (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("which attachment it is", func(t *testing.T) {
		_, err := decode([]byte(of(a + "," + strings.Replace(a, `"a"`, `""`, 1))))
		if err == nil || !strings.Contains(err.Error(), "attachment 2: ") {
			t.Error(err)
		}
	})
	t.Run("a directory is no record, and not damaged", func(t *testing.T) {
		n, path := nodeWithLeak(t)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		c, err := Open(path, served)
		if passErr := n.pass(podsource.Fallback(reader(t, path, served), fallbackRuntime), gc.Options{}); c != nil || err == nil || passErr == nil {
			t.Errorf("a writer: %v; a pass: %v", err, passErr)
		}
	})
}

// One address is reserved in two networks. A recorded attachment claims it in its own
// network only, so the other reservation is released. The record does not speak of
// networks whose ADDs the agent does not serve.
//
// Guard: [answer] sets the network of each pod's addresses.
func TestHazard69OneAddressInTwoNetworks(t *testing.T) {
	gctest.Uptime(t, 24*time.Hour)
	n := newNode(t, t.TempDir())
	storage := &node{t, filepath.Join(n.store.DataDir(), "storage"), n.store, n.allow}
	if err := os.Mkdir(storage.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.reserve("10.0.0.2", "a")
	storage.reserve("10.0.0.2", "leaked")
	record := func(networks ...string) podsource.Source {
		return begun(t, filepath.Join(t.TempDir(), "attachments"), Options{Networks: networks}, entry("a", "10.0.0.2"))
	}
	for _, row := range []struct {
		reason string
		source podsource.Source
		left   []string // in storage
	}{
		{"it does not serve that network", record(network1), []string{"10.0.0.2"}},
		{"a pod of another source has the address, in an unknown network",
			podsource.Union(record(network1, "storage"), podsource.Static{{UID: "1", IPs: entry("a", "10.0.0.2").IPs}}), []string{"10.0.0.2"}},
		{"it serves both", record(network1, "storage"), nil},
	} {
		r, err := gc.New(n.store, []string{network1, "storage"}, row.source, gc.Options{AllowForeign: n.allow})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(row.left, storage.left()) + cmp.Diff([]string{"10.0.0.2"}, n.left()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}
