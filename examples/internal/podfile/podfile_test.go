// SPDX-License-Identifier: Apache-2.0

package podfile

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const whole = `[
  {"namespace": "shop", "name": "web-1", "uid": "u1", "containerIDs": ["c1", "c2"],
   "ips": ["10.244.1.5", "fd00::5", "::ffff:10.244.1.6"], "startedAt": "2025-03-01T12:00:00Z", "hostNetwork": false},
  {"name": "done", "finishedAt": "2025-03-01T13:00:00+01:00"},
  {"name": "evicted", "finished": true},
  {"name": "multus", "network": "storage", "ips": ["10.2.0.5"], "moreIPs": true},
  {"network": null, "hostNetwork": true, "ips": null, "containerIDs": [], "startedAt": null}
]`

// All fields, and null, which is unknown. A list that is cut anywhere is an error, not a shorter list.
func TestDecode(t *testing.T) {
	got, err := decode([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	noon := time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	want := []podsource.Pod{
		{
			NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web-1"}, UID: "u1",
			ContainerIDs: []string{"c1", "c2"},
			IPs:          []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00::5"), netip.MustParseAddr("10.244.1.6")},
			StartedAt:    noon,
		},
		{NamespacedName: types.NamespacedName{Name: "done"}, FinishedAt: noon},
		{NamespacedName: types.NamespacedName{Name: "evicted"}, Finished: true},
		{NamespacedName: types.NamespacedName{Name: "multus"}, Network: "storage", IPs: []netip.Addr{netip.MustParseAddr("10.2.0.5")}, MoreIPs: true},
		{HostNetwork: true},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for n := range len(whole) {
		if pods, err := decode([]byte(whole[:n])); err == nil {
			t.Errorf("the first %d bytes are taken for %d pods", n, len(pods))
		}
	}
	for _, row := range []struct{ reason, text, want string }{
		{"null is no list", "null", "it must be an array of pods, [] without any: it is null"},
		{"one pod without an array", `{"name":"a"}`, "it must be an array of pods"},
		{"text behind the array", `[][]`, "after top-level value"},
		{"an unknown field", `[{"ip":["10.0.0.1"]}]`, `unknown field "[0].ip"`},
		{"a field in other letters", `[{"IPs":["10.0.0.1"]}]`, `unknown field "[0].IPs"`},
		{"the second of two lists would win", `[{"ips":["10.0.0.1"],"ips":[]}]`, `duplicate field "[0].ips"`},
		{"no address", `[{},{"ips":["10.0.0.300"]}]`, `"10.0.0.300"`},
		{"an empty address", `[{},{"ips":[""]}]`, `pod 2: "ips" has an element that is null or empty`},
		{"an address that could not be read", `[{"ips":[null]}]`, `"ips" has an element that is null or empty`},
		{"a prefix, as multus reports", `[{"ips":["10.0.0.3/24"]}]`, `"10.0.0.3/24"`},
		{"a zone", `[{"ips":["fe80::1%eth0"]}]`, "has a zone"},
		{"an ID that could not be read", `[{"containerIDs":[null]}]`, "null or empty"},
		{"a name that no network can have, where its addresses would be claimed nowhere", `[{"network":"pod net"}]`, `"pod net" is not the name of a network`},
		{"no time", `[{"startedAt":"yesterday"}]`, "yesterday"},
		{"a pod that could not be read", `[{},null]`, "pod 2: it is null"},
	} {
		if pods, err := decode([]byte(row.text)); err == nil || !strings.Contains(err.Error(), row.want) || pods != nil {
			t.Errorf("%s: %v, and error %v does not say %q", row.reason, pods, err, row.want)
		}
	}
}

// A list of pods is as old as its file, which is read anew. A list from a pipe is as old as its first read.
func TestFile(t *testing.T) {
	dir, hourAgo := t.TempDir(), time.Now().Add(-time.Hour).Truncate(time.Second)
	write := func(name, text string, size int64) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Truncate(path, size), os.Chtimes(path, hourAgo, hourAgo)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	stdin, err := os.Open(write("stdin", "[{}]", 4))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	begun := time.Now()
	for _, row := range []struct {
		reason, path string
		stdin        io.Reader
		pods, then   int // also after the file got another pod
		old          bool
		want         string // part of the error, or empty
	}{
		{"a file", write("list", "[{}]", 4), nil, 1, 2, true, ""},
		{"stdin from a file", "-", stdin, 1, 1, true, ""},
		{"stdin from a pipe, which answers every pass", "-", strings.NewReader("[{},{},{}]"), 3, 3, false, ""},
		{"a list that is cut short", write("cut", "[{},", 4), nil, 0, 0, false, "file:" + dir + "/cut: "},
		{"no such file", dir + "/none", nil, 0, 0, false, "source does not exist on this node: open "},
		{"a directory", dir, nil, 0, 0, false, "file:" + dir + ": "},
		{"far too long", write("huge", "", maxFile+1), nil, 0, 0, false, "longer than 64 MiB"},
		{"stdin of a daemon", "-", nil, 0, 0, false, "no standard input"},
	} {
		s, err := New(row.path, row.stdin)
		var asOf time.Time
		for _, want := range []int{row.pods, row.then} {
			var a podsource.Answer
			if s != nil {
				a, err = s.Pods(t.Context())
			}
			if len(a.Pods) != want || (err != nil) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
				t.Errorf("%s: got %d pods and error %v, want %d and %q", row.reason, len(a.Pods), err, want, row.want)
			}
			wrong := a.AsOf.Equal(hourAgo) != row.old || !row.old && a.AsOf.Before(begun)
			if err == nil && (wrong || !asOf.IsZero() && !a.AsOf.Equal(asOf)) {
				t.Errorf("%s: as of %v, and before %v; is it an hour old? %v", row.reason, a.AsOf, asOf, row.old)
			}
			asOf = a.AsOf
			write("list", "[{},{}]", 7)
		}
	}
}
