// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// firstSeenBefore makes all first sights older, as if this time had passed since, and returns the
// number of files.
func (n *testNode) firstSeenBefore(ago time.Duration) (files int) {
	n.t.Helper()
	file := filepath.Join(n.dataDir(), ".gc-memory")
	content, err := os.ReadFile(file)
	if err != nil {
		n.t.Fatal(err)
	}
	content = regexp.MustCompile(`"seen":-?\d+`).ReplaceAllFunc(content, func(text []byte) []byte {
		files++
		seen, err := strconv.ParseInt(string(text[len(`"seen":`):]), 10, 64)
		if err != nil {
			n.t.Fatal(err)
		}
		return fmt.Appendf(nil, `"seen":%d`, seen-int64(ago))
	})
	if err := os.WriteFile(file, content, 0o600); err != nil {
		n.t.Fatal(err)
	}
	return files
}

// Reservations from the future have no age. They are released once they were seen unowned for the
// default minimum age, longer than any ADD's process lives.
func TestReservationsFromTheFuture(t *testing.T) {
	n := newTestNode(t)
	n.fill(-100 * old)
	if got := n.call(call{command: "ADD", id: "a"}); got.code == 0 {
		t.Fatal("they were released when they were first seen")
	}
	n.write(n.file(address(1)), sandbox("both")+"\r\neth0", -100*old)
	if seen := n.firstSeenBefore(gc.DefaultMinAge - 20*time.Second); seen != addresses {
		t.Fatalf("%d files are in the note", seen)
	}
	if got := n.call(call{command: "ADD", id: "a"}); got.code == 0 {
		t.Fatal("they were released too early")
	}
	// A changed file counts as seen for the first time.
	n.reserve(address(0), "new", -100*old)
	// A container is as young as its youngest reservation.
	n.write(n.dataDir()+"/othernet/10.8.0.2", sandbox("both")+"\r\neth0", 0)
	// What a torn record may name is kept.
	n.write(n.recordFile("gone2"), "{", 0)
	n.firstSeenBefore(gc.DefaultMinAge + time.Second)
	if got := n.call(call{command: "ADD", id: "a"}); got.code != 0 {
		t.Fatal(got.out)
	}
	reserved := n.reserved()
	for ip, id := range map[string]string{address(0): "new", address(1): "both", address(2): "gone2", "10.8.0.2": "both"} {
		if reserved[ip] != id {
			t.Errorf("%s is reserved for %q, want %q", ip, reserved[ip], id)
		}
	}
	if len(reserved) != 5 {
		t.Errorf("%d reservations are left, want these and the new one", len(reserved))
	}
}

// Also a pass for one requested address notes when it first saw reservations from the future,
// though its result is for nobody else. Otherwise, where each ADD requests an address, these
// would be kept for ever.
func TestPassForOneNotesFirstSeen(t *testing.T) {
	n := newTestNode(t)
	n.reserve(address(0), "future", -time.Hour)
	if got := n.call(call{command: "ADD", id: "a", args: "IgnoreUnknown=1;IP=" + address(0)}); got.code == 0 {
		t.Fatalf("the address was given away: %s", got.out)
	}
	if count := n.firstSeenBefore(0); count != 1 {
		t.Errorf("%d reservations were noted, want 1", count)
	}
}
