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
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"
)

// runtime1 is what the record falls back to. It knows a container that the
// record does not, and not the one that it does.
var runtime1 = podsource.Static{{ContainerIDs: []string{"known-to-runtime"}}}

// scene makes a node with a leak, a container of the record and one of the
// runtime's, and a path for the record.
func scene(t *testing.T) (n *node, path string) {
	t.Helper()
	n = newNode(t, t.TempDir())
	n.reserve("10.0.0.2", "a")
	n.reserve("10.0.0.3", "known-to-runtime")
	n.reserve("10.0.0.4", "leaked")
	return n, filepath.Join(t.TempDir(), "attachments")
}

// refused checks that a file is refused with the error is, by readers and
// writers, without a word of another one, that it stays as it is, and that a
// pass releases nothing.
func refused(t *testing.T, n *node, path string, is error) {
	t.Helper()
	before, beforeErr := os.ReadFile(path)
	_, readErr := reader(t, path, served).Pods(t.Context())
	c, openErr := Open(path, served)
	if c != nil {
		t.Error("a writer came with the error")
	}
	passErr := n.pass(podsource.Fallback(reader(t, path, served), runtime1), gc.Options{})
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
		t.Errorf("released all the same; left are %v", left)
	}
	if after, err := os.ReadFile(path); string(after) != string(before) || (err == nil) != (beforeErr == nil) {
		t.Errorf("the file was changed from %q to %q", before, after)
	}
}

// A missing record is the fallback's turn, and a damaged or a newer one an
// error, after which nothing was released and the file is as it was.
//
// Guard: [Checkpoint.Pods] and [Source.Pods] are [podsource.ErrNotHere] where nothing was
// written.
func TestHazard26RecordMissing(t *testing.T) {
	n, path := scene(t)
	if got, err := reader(t, path, served).Pods(t.Context()); !errors.Is(err, podsource.ErrNotHere) || got.Authoritative {
		t.Errorf("a reader: %+v, %v, want %v", got, err, podsource.ErrNotHere)
	}
	if err := n.pass(podsource.Fallback(reader(t, path, served), runtime1), gc.Options{DryRun: true}); err != nil {
		t.Errorf("a reader: %v", err)
	}
	c := opened(t, path, served)
	if err := n.pass(podsource.Fallback(c, runtime1), gc.Options{}); err != nil {
		t.Errorf("a writer: %v", err)
	}
	if diff := cmp.Diff([]string{"10.0.0.3"}, n.left()); diff != "" {
		t.Errorf("what the fallback knows (-want +got):\n%s", diff)
	}
	if err := n.pass(c, gc.Options{}); !errors.Is(err, podsource.ErrNotHere) {
		t.Errorf("without a fallback: %v, want %v", err, podsource.ErrNotHere)
	}
	if diff := cmp.Diff([]string{"10.0.0.3"}, n.left()); diff != "" {
		t.Errorf("after an error (-want +got):\n%s", diff)
	}
}

// A file that ends early is damaged, wherever it ends.
//
// Guard: [decode] takes all of a file or nothing.
func TestHazard26RecordTruncatedAtEveryByte(t *testing.T) {
	content := written(t, served, entry("a", "10.0.0.2"))
	n, path := scene(t)
	for size := range len(content) - 1 { // all but its last newline is all
		write(t, path, string(content[:size]))
		refused(t, n, path, ErrCorrupt)
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

// A bit that turned in the boot ID or in a container ID would cost live
// addresses. In the outer form it may mean nothing, as in a key's letter case.
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

// stamped makes a file of a record's JSON, with the sum that it needs.
func stamped(format, record string) string {
	return fmt.Sprintf(`{"format":%q,"crc32c":"%08x","record":%s}`, format, crc32.Checksum([]byte(record), castagnoli), record)
}

// A file with another stamp, or one that is not what its stamp says, is refused, and a
// person moves it away.
//
// Guard: [decode] knows [Format] and nothing else, and [decodeStrict] no unknown field.
func TestHazard26RecordUnknownOrDamaged(t *testing.T) {
	const a = `{"network":"podnet","containerID":"a","ifName":"eth0","ips":[],"time":"2025-03-01T12:00:00Z"}`
	of := func(entries string) string {
		return stamped(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[`+entries+`]}`)
	}
	b := strings.Replace(a, `"a"`, `"b"`, 1)
	if _, err := decode([]byte(of(a + "," + b))); err != nil {
		t.Fatalf("the one that the rows differ from: %v", err)
	}
	for _, row := range []struct {
		reason, content string
		is              error
	}{
		{"the next version", stamped("hostlocal-gc/attachments/3", `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[]}`), ErrVersion},
		{"the next version, of another make", `{"format":"hostlocal-gc/attachments/3","pages":7}`, ErrVersion},
		{"somebody else's file", `{"format":"theirs"}`, ErrVersion},
		{"no stamp", `{}`, ErrCorrupt},
		{"a stamp that is no string", `{"format":1}`, ErrCorrupt},
		{"nothing, as after a power loss", "", ErrCorrupt},
		{"zeros, as after another one", strings.Repeat("\x00", 512), ErrCorrupt},
		{"no object", `null`, ErrCorrupt},
		{"a list", `[]`, ErrCorrupt},
		{"something after the end", of(a) + "{}", ErrCorrupt},
		{"no record", `{"format":"` + Format + `"}`, ErrCorrupt},
		{"a wrong sum", strings.Replace(of(a), `"containerID":"a"`, `"containerID":"b"`, 1), ErrCorrupt},
		{"no attachments, not even none", stamped(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z"}`), ErrCorrupt},
		{"null for them", stamped(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":null}`), ErrCorrupt},
		{"an unknown field, which the next change would lose", stamped(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[],"new":1}`), ErrCorrupt},
		{"an unknown field beside the record", strings.Replace(of(a), `"record":`, `"new":1,"record":`, 1), ErrCorrupt},
		{"an unknown field of an attachment", of(strings.Replace(a, "{", `{"new":1,`, 1)), ErrCorrupt},
		{"the same attachment twice", of(a + "," + a), ErrCorrupt},
		{"the same twice after another one", of(a + "," + b + "," + b), ErrCorrupt},
		{"no container of the second attachment", of(a + "," + strings.Replace(a, `"a"`, `""`, 1)), ErrCorrupt},
		{"not when it was written", stamped(Format, `{"bootID":"","attachments":[]}`), ErrCorrupt},
		{"written before the boot", stamped(Format, `{"bootID":"","written":"2025-03-01T12:00:00Z","sinceBoot":-1,"attachments":[]}`), ErrCorrupt},
		{"the same twice, and one between", of(a + "," + strings.Replace(a, `"a"`, `"b"`, 1) + "," + a), ErrCorrupt},
		{"an attachment of no container", of(strings.Replace(a, `"a"`, `""`, 1)), ErrCorrupt},
		{"a container ID that none can be", of(strings.Replace(a, `"a"`, `"\ud800"`, 1)), ErrCorrupt},
		{"an address that is none", of(strings.Replace(a, `[]`, `["10.0.0.256"]`, 1)), ErrCorrupt},
		{"an empty address", of(strings.Replace(a, `[]`, `[""]`, 1)), ErrCorrupt},
		{"null for an attachment", of("null"), ErrCorrupt},
		{"too deep", of(strings.Repeat("[", 1<<15)), ErrCorrupt},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n, path := scene(t)
			write(t, path, row.content)
			refused(t, n, path, row.is)
			// What a person does about it.
			if err := os.Rename(path, path+".aside"); err != nil {
				t.Fatal(err)
			}
			c := opened(t, path, served)
			if err := n.pass(podsource.Fallback(c, runtime1), gc.Options{}); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{"10.0.0.3"}, n.left()); diff != "" {
				t.Errorf("moved away, and the fallback asked (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("too large to be read", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "attachments")
		write(t, path, "")
		if err := os.Truncate(path, maxSize+1); err != nil {
			t.Fatal(err)
		}
		if _, _, err := load(path, ""); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "can't be one") {
			t.Error(err)
		}
	})
	t.Run("a directory", func(t *testing.T) {
		n, path := scene(t)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		refused(t, n, path, ErrCorrupt)
	})
}

// An empty record of this boot, and one of an earlier boot, are answers: what is
// reserved has leaked. The same list without the record's declaration is refused
// (R9).
//
// Guard: [asking.answer] declares that it is authoritative.
func TestHazard34EmptyRecord(t *testing.T) {
	for _, row := range []struct {
		reason string
		source func(t *testing.T, path string) podsource.Source
		is     error
	}{
		{"begun, and nothing attached", func(t *testing.T, path string) podsource.Source {
			return begun(t, path, served)
		}, nil},
		{"read by somebody else", func(t *testing.T, path string) podsource.Source {
			begun(t, path, served)
			return reader(t, path, served)
		}, nil},
		{"the last one detached", func(t *testing.T, path string) podsource.Source {
			c := begun(t, path, served, entry("a", "10.0.0.2"))
			if err := c.Remove(key("a")); err != nil {
				t.Fatal(err)
			}
			return c
		}, nil},
		{"of an earlier boot", func(t *testing.T, path string) podsource.Source {
			write(t, path, string(written(t, ofBoot("before"), entry("a", "10.0.0.2"))))
			return opened(t, path, served)
		}, nil},
		{"beside a source that sees somebody, and with a fallback", func(t *testing.T, path string) podsource.Source {
			agent := podsource.Static{{UID: "agent", HostNetwork: true}}
			return podsource.Union(agent, podsource.Fallback(begun(t, path, served), podsource.Static{}))
		}, nil},
		{"it does not speak for a runtime that sees nobody", func(t *testing.T, path string) podsource.Source {
			return podsource.Union(podsource.Static{}, begun(t, path, served))
		}, gc.ErrNoPods},
		{"nobody, and no record that declares it", func(*testing.T, string) podsource.Source { return podsource.Static{} }, gc.ErrNoPods},
	} {
		t.Run(row.reason, func(t *testing.T) {
			n, path := scene(t)
			for _, ip := range n.left() { // before this boot
				n.date(ip, boottime.Since()+time.Hour)
			}
			if err := n.pass(row.source(t, path), gc.Options{}); !errors.Is(err, row.is) {
				t.Errorf("%v, want %v", err, row.is)
			}
			if left := n.left(); (len(left) == 0) != (row.is == nil) {
				t.Errorf("left are %v", left)
			}
		})
	}
}

// Two networks hold one address. The record's claim names its network, so the
// other one's reservation is not kept for it. Of a network whose ADDs it does not
// serve it says nothing.
//
// Guard: [asking.answer] gives each pod the network of its addresses.
func TestHazard69OneAddressInTwoNetworks(t *testing.T) {
	n := newNode(t, t.TempDir())
	storage := &node{t, filepath.Join(n.store.DataDir(), "storage"), n.store}
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
		{"somebody else has the address, and does not say in which network",
			podsource.Union(record(network1, "storage"), podsource.Static{{UID: "1", IPs: entry("a", "10.0.0.2").IPs}}), []string{"10.0.0.2"}},
		{"it serves both", record(network1, "storage"), nil},
	} {
		r, err := gc.New(n.store, []string{network1, "storage"}, row.source, gc.Options{})
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
