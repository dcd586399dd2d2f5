// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzDecode: any bytes are a record or an error, and a record does not change when it
// is encoded and decoded.
func FuzzDecode(f *testing.F) {
	f.Add(written(f, ofBoot("5c7b9a1e")))
	f.Add(written(f, ofBoot("5c7b9a1e"), entry("a", "10.0.0.2"), entry("b", "fd00::2")))
	for _, record := range []string{
		`{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[{"network":"n","containerID":"a","ifName":"e","ips":null,"pod":{"name":"x"},"time":"2025-03-01T12:00:00+02:00"}]}`,
		`{"bootID":"\u2028","written":"2025-03-01T12:00:00Z","attachments":[{"network":"n","containerID":"a","ifName":"e","ips":["::ffff:10.0.0.1","fe80::1%eth0"],"netns":{"path":"x","inode":1}}]}`,
		`{"bootID":"","written":"2025-03-01T12:00:00Z","attachments":[null]}`, `{"bootid":"","WRITTEN":"2025-03-01T12:00:00Z","ATTACHMENTS":[]}`,
	} {
		f.Add([]byte(withChecksum(Format, record)))
		f.Add([]byte(record)) // see below
	}
	f.Add([]byte(`{"format":"hostlocal-gc/attachments/4"}`))
	f.Add([]byte(`{}`))
	check := func(t *testing.T, content []byte) {
		r, err := decode(content)
		if err != nil {
			if r != nil || !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatalf("%v, %v", r, err)
			}
			return
		}
		for i := range r.Entries {
			if err := r.Entries[i].check(); err != nil {
				t.Errorf("came through: %v", err)
			}
			if i > 0 && r.Entries[i-1].compare(r.Entries[i].Key) >= 0 {
				t.Errorf("not sorted: %v", r.Entries)
			}
		}
		again, err := encode(*r)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decode(again)
		if err != nil {
			t.Fatalf("%v: %s", err, again)
		}
		if diff := cmp.Diff(r, back, equal); diff != "" {
			t.Errorf("(-first +again):\n%s", diff)
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		check(t, content)
		// A fuzzer does not find checksums, so content is also tried as a record with
		// the right one.
		check(t, []byte(withChecksum(Format, string(content))))
	})
}
