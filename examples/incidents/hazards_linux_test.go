// SPDX-License-Identifier: Apache-2.0

package incidents

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// A hazard is a data directory, a list of pods, and the expected result. Its number is that in the
// library's tests. All files are an hour old, unless it says otherwise.
type hazard struct {
	hazard, what string
	files        map[string]string        // content by path, below the data directory
	ages         map[string]time.Duration // ages of files with another age
	listAge      time.Duration            // age of pods.json
	locked       bool                     // another process holds the plugin's lock
	others       []string                 // paths that no collector may touch
	pods         string                   // pods.json
	keep         []string
	release      []string
	refuse       bool // the collector must refuse
	more         func(dir string) error
}

// leak is the default leaked reservation.
const leak = network + "/10.244.0.250"

// container is a container ID, and owner the content that host-local writes for it.
func container(i int) string { return fmt.Sprintf("%064d", i) }
func owner(i int) string     { return container(i) + "\r\neth0" }

// web is a live pod's complete entry.
const web = `{"namespace":"shop","name":"web-1","uid":"u1","containerIDs":["0000000000000000000000000000000000000000000000000000000000000001"],` +
	`"ips":["10.244.0.2"],"startedAt":"2025-03-01T12:00:00Z"}`

// since formats the time before the given duration for pods.json.
func since(ago time.Duration) string { return time.Now().Add(-ago).UTC().Format(time.RFC3339) }

func in(name string) string { return network + "/" + name }

// hazards are the cases that need only a directory and a list. In each web-1 lives, and container 9
// has ended.
func hazards() []hazard {
	all := []hazard{
		{hazard: "-", what: "one pod lives, one address leaked"},
		{hazard: "01", what: "a pod runs, and its status has no address yet",
			files: map[string]string{in("10.244.0.3"): owner(2)}, keep: []string{in("10.244.0.3")},
			pods: `[` + web + `,{"namespace":"shop","name":"web-2","uid":"u2","startedAt":"` + since(61*time.Minute) + `"}]`},
		{hazard: "04", what: "an ADD is in flight: reserved, and in no list", ages: map[string]time.Duration{in("10.244.0.3"): 0},
			files: map[string]string{in("10.244.0.3"): owner(2)}, keep: []string{in("10.244.0.3")}},
		{hazard: "05", what: "a sandbox is not ready, and the list has its ID only",
			files: map[string]string{in("10.244.0.3"): owner(2)}, keep: []string{in("10.244.0.3")},
			pods: `[` + web + `,{"namespace":"shop","name":"web-2","uid":"u2","containerIDs":["` + container(2) + `"]}]`},
		{hazard: "06", what: "the list is empty", pods: `[]`, refuse: true},
		{hazard: "07", what: "the list ends in the middle", pods: `[` + web + `,{"namespace":"shop","na`, refuse: true},
		{hazard: "08", what: "dual stack, and the list has the IPv4 address only",
			files: map[string]string{in("10.244.0.3"): owner(2), in("fd00::3"): owner(2)}, keep: []string{in("10.244.0.3"), in("fd00::3")},
			pods: `[` + web + `,{"namespace":"shop","name":"web-2","uid":"u2","ips":["10.244.0.3"],"startedAt":"2025-03-01T12:00:00Z"}]`},
		{hazard: "11", what: "a container that is gone has the file, and a live pod the address",
			files: map[string]string{in("10.244.0.3"): owner(8)}, keep: []string{in("10.244.0.3")},
			pods: `[` + web + `,{"namespace":"shop","name":"web-2","uid":"u2","containerIDs":["` + container(2) + `"],"ips":["10.244.0.3"]}]`},
		{hazard: "12", what: "a pod that ended an hour ago still has its address in the list",
			files: map[string]string{in("10.244.0.3"): owner(2)}, release: []string{in("10.244.0.3")},
			pods: `[` + web + `,{"namespace":"shop","name":"job-1","uid":"u2","ips":["10.244.0.3"],"finished":true,"finishedAt":"` + since(time.Hour) + `"}]`},
		{hazard: "14", what: "a reservation whose file is empty, after a power loss",
			files: map[string]string{in("10.244.0.3"): ""}, release: []string{in("10.244.0.3")}},
		{hazard: "14", what: "the same a moment after it was made", ages: map[string]time.Duration{in("10.244.0.3"): 0},
			files: map[string]string{in("10.244.0.3"): ""}, keep: []string{in("10.244.0.3")}},
		{hazard: "15", what: "the owner as old versions of host-local wrote it",
			files: map[string]string{in("10.244.0.3"): container(2), in("10.244.0.4"): container(3) + "\n"}, keep: []string{in("10.244.0.3"), in("10.244.0.4")},
			pods: `[` + web + `,{"namespace":"shop","name":"web-2","uid":"u2","containerIDs":["` + container(2) + `","` + container(3) + `"]}]`},
		{hazard: "16", what: "a file that holds nothing that host-local writes",
			files: map[string]string{in("10.244.0.3"): "a\nb\nc\nd\n"}, others: []string{in("10.244.0.3")}},
		{hazard: "17", what: "a backup, a link, a lock and names that are no addresses",
			files:  map[string]string{in("backup/10.244.0.3"): owner(9), in("10.244.0.03"): owner(9), in("::ffff:10.244.0.4"): owner(9), in("last_reserved_ip.0"): "10.244.0.2", in("lock"): "", "kept/10.244.0.9": owner(9)},
			others: []string{in("backup/10.244.0.3"), in("10.244.0.03"), in("::ffff:10.244.0.4"), in("last_reserved_ip.0"), in("lock"), in("10.244.0.9"), "kept/10.244.0.9"},
			more: func(dir string) error {
				return os.Symlink(filepath.Join(dir, "kept", "10.244.0.9"), filepath.Join(dir, in("10.244.0.9")))
			}},
		{hazard: "17", what: "a pipe whose name is an address", others: []string{in("10.244.0.3")},
			more: func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, in("10.244.0.3")), 0o600) }},
		{hazard: "18", what: "somebody holds the plugin's lock", locked: true, refuse: true},
		{hazard: "22", what: "a live container has more addresses than the list, also in a second network",
			files: map[string]string{"storage/10.9.0.3": owner(1), in("10.244.0.3"): owner(1)}, keep: []string{"storage/10.9.0.3", in("10.244.0.3")},
			pods: `[{"namespace":"shop","name":"web-1","uid":"u1","ips":["10.244.0.2"],"startedAt":"2025-03-01T12:00:00Z"}]`},
		{hazard: "36", what: "a pod starts, and nobody knows since when",
			files: map[string]string{in("10.244.0.3"): owner(2)}, keep: []string{in("10.244.0.3")}, release: []string{},
			pods: `[` + web + `,{"namespace":"shop","name":"web-2","uid":"u2"}]`},
		{hazard: "62", what: "the list is an hour old, and a pod was added half an hour ago", listAge: time.Hour,
			ages:  map[string]time.Duration{in("10.244.0.3"): time.Hour / 2},
			files: map[string]string{in("10.244.0.3"): owner(2)}, keep: []string{in("10.244.0.3")}},
	}
	for i := range all {
		h := &all[i]
		if h.files == nil {
			h.files = make(map[string]string)
		}
		h.files[in("10.244.0.2")], h.keep = owner(1), append(h.keep, in("10.244.0.2"))
		if h.pods == "" {
			h.pods = `[` + web + `]`
		}
		switch {
		case h.refuse:
			h.files[leak], h.keep = owner(9), append(h.keep, leak)
		case h.release == nil:
			h.files[leak], h.release = owner(9), []string{leak}
		}
		h.files[in("lock")] = ""
		if !slices.Contains(h.others, in("lock")) {
			h.others = append(h.others, in("lock"))
		}
	}
	return all
}

// lay makes the directory.
func (h hazard) lay(t *testing.T, dir string) {
	t.Helper()
	for name, content := range h.files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		age := time.Hour
		if name == leak {
			age = 2 * time.Hour // from before the start of any starting pod
		}
		if other, ok := h.ages[name]; ok {
			age = other
		}
		dateBack(t, path, age)
	}
	if h.more != nil {
		if err := h.more(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// dateBack gives a file an age.
func dateBack(t *testing.T, path string, age time.Duration) {
	t.Helper()
	then := time.Now().Add(-age)
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
}
