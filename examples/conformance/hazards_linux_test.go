// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A hazard is a data directory, a list of pods, and the expected result. Its number is that in the
// library's tests. Paths are below the network's directory. In each web-1 lives and has ip2, and leak
// is a leak that must be released, unless release has others or the collector must refuse.
type hazard struct {
	hazard, what          string
	files                 map[string]string        // content by path
	younger               map[string]time.Duration // by how much files are younger than an hour
	pods                  string                   // pods.json
	listAge               time.Duration            // age of pods.json
	keep, release, others []string                 // reservations that live, that leaked, and files that no collector may touch
	locked                bool                     // another process holds the plugin's lock
	refuse                bool
	more                  func(dir string) error
}

const (
	network                   = "podnet"
	ip2, ip3, ip4, ip6, leak  = "10.244.0.2", "10.244.0.3", "10.244.0.4", "fd00::3", "10.244.0.250"
	at3, started              = `,"ips":["10.244.0.3"]`, `,"startedAt":"2025-03-01T12:00:00Z"` // fields of pods.json
	storage, backup, linkedTo = "../storage/10.9.0.3", "backup/10.244.0.3", "../kept/10.244.0.9"
)

// owner is the content that host-local writes for a container ID.
func owner(i int) string { return fmt.Sprintf("%064d\r\neth0", i) }

// A pod of the list, and some of its fields.
func pod(name, fields string) string {
	return `{"namespace":"shop","name":"` + name + `","uid":"` + name + `"` + fields + `}`
}
func with(fields string) string { return `[` + alone + `,` + pod("web-2", fields) + `]` }
func ids(i int) string          { return fmt.Sprintf(`,"containerIDs":["%064d"]`, i) }
func since(key string, ago time.Duration) string {
	return `,"` + key + `":"` + time.Now().Add(-ago).UTC().Format(time.RFC3339) + `"`
}

var alone = pod("web-1", ids(1)+`,"ips":["10.244.0.2"]`+started)

func hazards() []hazard {
	type files = map[string]string
	type ages = map[string]time.Duration
	two, at := files{ip3: owner(2)}, []string{ip3}
	all := []hazard{
		{hazard: "-", what: "one pod lives, one address leaked"},
		{hazard: "01", what: "a pod runs, and its status has no address yet", files: two, keep: at,
			pods: with(since("startedAt", 61*time.Minute))},
		{hazard: "04", what: "an ADD is in flight: reserved, and in no list", files: two, younger: ages{ip3: time.Hour}, keep: at},
		{hazard: "05", what: "a sandbox is not ready, and the list has its ID only", files: two, keep: at, pods: with(ids(2))},
		{hazard: "06", what: "the list is empty", pods: `[]`, refuse: true},
		{hazard: "07", what: "the list ends in the middle", pods: `[` + alone + `,{"namespace":"shop","na`, refuse: true},
		{hazard: "08", what: "dual stack, and the list has the IPv4 address only", files: files{ip3: owner(2), ip6: owner(2)},
			keep: []string{ip3, ip6}, pods: with(at3 + started)},
		{hazard: "11", what: "a container that is gone has the file, and a live pod the address", files: files{ip3: owner(8)}, keep: at,
			pods: with(ids(2) + at3)},
		{hazard: "12", what: "a pod that ended an hour ago still has its address in the list", files: two, release: at,
			pods: with(at3 + `,"finished":true` + since("finishedAt", time.Hour))},
		{hazard: "14", what: "a reservation whose file is empty, after a power loss", files: files{ip3: ""}, release: at},
		{hazard: "14", what: "the same a moment after it was made", files: files{ip3: ""}, younger: ages{ip3: time.Hour}, keep: at},
		{hazard: "15", what: "the owner as old versions of host-local wrote it", files: files{ip3: owner(2)[:64], ip4: owner(2)[:64] + "\n"},
			keep: []string{ip3, ip4}, pods: with(ids(2))},
		{hazard: "16", what: "a file that holds nothing that host-local writes", files: files{ip3: "a\nb\nc\nd\n"}, others: at},
		{hazard: "17", what: "a backup, a link and names that are no addresses", files: files{backup: owner(9), "10.244.0.03": owner(9),
			"::ffff:10.244.0.4": owner(9), "last_reserved_ip.0": ip2, linkedTo: owner(9)},
			others: []string{backup, "10.244.0.03", "::ffff:10.244.0.4", "last_reserved_ip.0", linkedTo, "10.244.0.9"},
			more:   func(dir string) error { return os.Symlink("../kept/10.244.0.9", filepath.Join(dir, "10.244.0.9")) }},
		{hazard: "17", what: "a pipe whose name is an address", others: at,
			more: func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, ip3), 0o600) }},
		{hazard: "18", what: "somebody holds the plugin's lock", locked: true, refuse: true},
		{hazard: "22", what: "a live container has more addresses than the list, also in a second network",
			files: files{storage: owner(1), ip3: owner(1)}, keep: []string{storage, ip3},
			pods: `[` + pod("web-1", `,"ips":["10.244.0.2"]`+started) + `]`},
		{hazard: "36", what: "a pod starts, and nobody knows since when", files: two, keep: at, release: []string{}, pods: with("")},
		{hazard: "62", what: "the list is an hour old, and a pod was added half an hour ago", listAge: time.Hour, files: two,
			younger: ages{ip3: time.Hour / 2}, keep: at},
	}
	for i := range all {
		h := &all[i]
		if h.keep = append(h.keep, ip2); h.pods == "" {
			h.pods = `[` + alone + `]`
		}
		if h.refuse {
			h.keep = append(h.keep, leak)
		} else if h.release == nil {
			h.release = []string{leak}
		}
		h.others = append(h.others, "lock")
	}
	return all
}

// lay makes the network's directory.
func (h hazard) lay(t *testing.T, dir string) {
	write(t, filepath.Join(dir, ip2), owner(1), time.Hour)
	write(t, filepath.Join(dir, leak), owner(9), 2*time.Hour) // from before the start of any starting pod
	write(t, filepath.Join(dir, "lock"), "", time.Hour)
	for name, content := range h.files {
		write(t, filepath.Join(dir, name), content, time.Hour-h.younger[name])
	}
	if h.more != nil {
		if err := h.more(dir); err != nil {
			t.Fatal(err)
		}
	}
}
