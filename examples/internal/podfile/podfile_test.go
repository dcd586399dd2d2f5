// SPDX-License-Identifier: Apache-2.0

package source

import (
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

func TestDecode(t *testing.T) {
	got, err := Decode([]byte(whole))
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
}

func TestDecodeRefuses(t *testing.T) {
	for _, row := range []struct{ reason, text, want string }{
		{"no JSON at all", "", "it is empty; a node without pods is written []"},
		{"white space alone", " \n", "it is empty; a node without pods is written []"},
		{"null is no list", "null", "it must be an array of pods"},
		{"one pod without an array", `{"name":"a"}`, "it must be an array of pods: found { instead of ["},
		{"a second array", `[][]`, "there is more after the array"},
		{"a stray bracket", `[]]`, "there is more after the array"},
		{"text behind the array", `[] done`, "there is more after the array"},
		{"an unknown field", `[{"ip":["10.0.0.1"]}]`, `pod 1: unknown field "ip"`},
		{"a field in other letters", `[{"IPs":["10.0.0.1"]}]`, `pod 1: unknown field "IPs"`},
		{"the second of two lists would win", `[{"ips":["10.0.0.1"],"ips":[]}]`, `pod 1: field "ips" is given twice`},
		{"no address", `[{},{"ips":["10.0.0.300"]}]`, `pod 2: field "ips": "10.0.0.300" is not an IP address`},
		{"an empty address", `[{"ips":[""]}]`, `field "ips": "" is not an IP address`},
		{"a prefix, as multus reports", `[{"ips":["10.0.0.3/24"]}]`, `"10.0.0.3/24" is a prefix; give the address alone`},
		{"a zone", `[{"ips":["fe80::1%eth0"]}]`, "has a zone"},
		{"an address that could not be read", `[{"ips":[null]}]`, `field "ips": an element is null`},
		{"one address without its array", `[{"ips":"10.0.0.1"}]`, `pod 1: field "ips"`},
		{"an ID that could not be read", `[{"containerIDs":[null]}]`, `field "containerIDs": an element is null`},
		{"an empty ID", `[{"containerIDs":[""]}]`, `a container ID is empty`},
		{"a name that no network can have, where its addresses would be claimed nowhere", `[{"network":"pod net"}]`, `field "network": "pod net" is not the name of a network`},
		{"an empty name, which is not the same as none", `[{"network":""}]`, `field "network": "" is not the name of a network`},
		{"no time", `[{"startedAt":"yesterday"}]`, `field "startedAt"`},
		{"an empty time", `[{"startedAt":""}]`, `field "startedAt"`},
		{"a pod that could not be read", `[null]`, "pod 1: it must be an object"},
		{"a pod that is a string", `["web-1"]`, "pod 1: it must be an object"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			pods, err := Decode([]byte(row.text))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v does not say %q", err, row.want)
			}
			if pods != nil {
				t.Errorf("pods come with the error: %v", pods)
			}
		})
	}
}

// A list that is cut anywhere is an error, not a shorter list.
func TestDecodeCutShort(t *testing.T) {
	for n := range len(whole) {
		if pods, err := Decode([]byte(whole[:n])); err == nil {
			t.Errorf("the first %d bytes are taken for %d pods", n, len(pods))
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, row := range []struct {
		reason string
		specs  []string
		want   string
	}{
		{"none", nil, "no pod source was given"},
		{"an unknown kind", []string{"docker"}, `pod source "docker": there is no kind "docker"; the kinds are file:PATH`},
		{"a path without a kind", []string{"/run/pods.json"}, `there is no kind "/run/pods.json"`},
		{"an empty one", []string{""}, `there is no kind ""`},
		{"no path", []string{"file:"}, `pod source "file:": a path is missing`},
		{"no colon", []string{"file"}, `pod source "file": a path is missing`},
		{"stdin can be read once only", []string{"file:-", "file:-"}, `pod source "file:-" was given twice`},
	} {
		if _, err := Parse(row.specs, Env{Stdin: strings.NewReader("")}); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: error %v does not say %q", row.reason, err, row.want)
		}
	}
	if _, err := Parse([]string{"file:-"}, Env{}); err == nil || !strings.Contains(err.Error(), "no standard input") {
		t.Errorf("a daemon has no standard input: got error %v", err)
	}
}

func TestSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "file:" + path
	}
	a := write("a", `[{"uid":"1","ips":["10.0.0.1"]}]`)
	b := write("b", `[{"uid":"1","containerIDs":["c1"]},{"uid":"2"}]`)
	cut := write("cut", `[{"uid":"1"},`)
	huge := write("huge", "")
	if err := os.Truncate(filepath.Join(dir, "huge"), maxFile+1); err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		reason string
		specs  []string
		stdin  string
		pods   int
		want   string
	}{
		{reason: "one file", specs: []string{a}, pods: 1},
		{reason: "two stand side by side", specs: []string{a, b}, pods: 3},
		{reason: "stdin", specs: []string{"file:-"}, stdin: "[{},{},{}]", pods: 3},
		{reason: "stdin beside a file", specs: []string{a, "file:-"}, stdin: `[{"uid":"9"}]`, pods: 2},
		{reason: "an empty list is the caller's to judge", specs: []string{"file:-"}, stdin: "[]"},
		{reason: "one of two fails, so nothing is known", specs: []string{a, cut}, want: "pod source file: " + cut + ": "},
		{reason: "no such file", specs: []string{"file:" + dir + "/none"}, want: "file:" + dir + "/none: source does not exist on this node: open "},
		{reason: "a directory", specs: []string{"file:" + dir}, want: "file:" + dir + ": "},
		{reason: "far too long", specs: []string{huge}, want: "longer than 64 MiB"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			s, err := Parse(row.specs, Env{Stdin: strings.NewReader(row.stdin)})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // stdin answers every pass, too
				pods, err := podsOf(t, s)
				if row.want != "" {
					if err == nil || !strings.Contains(err.Error(), row.want) {
						t.Errorf("error %v does not say %q", err, row.want)
					}
					continue
				}
				if err != nil || len(pods) != row.pods {
					t.Errorf("got %d pods and error %v, want %d", len(pods), err, row.pods)
				}
			}
		})
	}
}

// Each source may be empty, and the first one of pods must list what is required.
func TestAllowEmptyAndRequire(t *testing.T) {
	with := filepath.Join(t.TempDir(), "pods")
	if err := os.WriteFile(with, []byte(`[{"namespace":"a","name":"agent"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		specs []string
		want  string
	}{
		{[]string{"file:" + with, "file:-"}, ""},
		{[]string{"file:-", "file:" + with}, "the required a/agent"},
		{[]string{"netns"}, "a/agent can't be required"},
	} {
		env := Env{Stdin: strings.NewReader("[]"), AllowEmpty: true, Require: []types.NamespacedName{{Namespace: "a", Name: "agent"}}}
		var answer podsource.Answer
		s, err := Parse(row.specs, env)
		if err == nil {
			answer, err = s.Pods(t.Context())
		}
		if (err != nil) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%q: got %v, want %q", row.specs, err, row.want)
		}
		for _, part := range answer.Parts {
			if err == nil && !part.Authoritative {
				t.Errorf("%q: %+v may not be empty", row.specs, part)
			}
		}
	}
}

func TestFileIsReadAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pods")
	s, err := Parse([]string{"file:" + path}, Env{})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		text string
		pods int
	}{{"[{}]", 1}, {"[{},{}]", 2}} {
		if err := os.WriteFile(path, []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if pods, err := podsOf(t, s); err != nil || len(pods) != row.pods {
			t.Errorf("%s: got %d pods and error %v", row.text, len(pods), err)
		}
	}
}

// podsOf asks a source, and returns the pods of all its members.
func podsOf(t *testing.T, s podsource.Source) (pods []podsource.Pod, err error) {
	t.Helper()
	a, err := s.Pods(t.Context())
	for _, m := range a.Members() {
		if m.Source == "" {
			t.Errorf("an answer says not from which source it is: %v", m)
		}
		pods = append(pods, m.Pods...)
	}
	return pods, err
}

// A list of pods is as old as its file. A list from a pipe is as old as its first read.
func TestAsOf(t *testing.T) {
	hourAgo := time.Now().Add(-time.Hour).Truncate(time.Second)
	path := filepath.Join(t.TempDir(), "pods")
	if err := os.WriteFile(path, []byte("[{}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	begun := time.Now()
	for _, row := range []struct {
		reason string
		spec   string
		stdin  io.Reader
		old    bool
	}{
		{"a file", "file:" + path, nil, true},
		{"standard input from a file", "file:-", file, true},
		{"standard input from a pipe", "file:-", strings.NewReader("[{}]"), false},
	} {
		s, err := Parse([]string{row.spec}, Env{Stdin: row.stdin})
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Pods(t.Context())
		if err != nil || a.AsOf.Equal(hourAgo) != row.old || !row.old && a.AsOf.Before(begun) {
			t.Errorf("%s: as of %v, error %v; is it an hour old? %v", row.reason, a.AsOf, err, row.old)
		}
		if again, err := s.Pods(t.Context()); err != nil || !again.AsOf.Equal(a.AsOf) {
			t.Errorf("%s: as of %v, error %v when asked again, want %v", row.reason, again.AsOf, err, a.AsOf)
		}
	}
}

// TestOrderOfAsking: a runtime is asked before lists of pods, in any order of the flags (U4).
// Neither exists, and an error ends the questions.
func TestOrderOfAsking(t *testing.T) {
	for _, specs := range [][]string{{"cri:/no/such/socket", "file:none"}, {"file:none", "cri:/no/such/socket"}} {
		s, err := Parse(specs, Env{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "container runtime at ") {
			t.Errorf("%q: got %v, want the runtime's error", specs, err)
		}
	}
}

// TestAlternatives: the source after a comma is asked only if the first does not exist.
func TestAlternatives(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"one.json": `[{"name": "one"}]`, "two.json": `[{"name": "two"}]`, "bad.json": `[`, "a,b.json": `[{"name": "comma"}]`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct{ reason, spec, want, err string }{
		{"the first is there", "file:one.json,file:two.json", "one", ""},
		{"the first is not", "file:none.json,file:two.json", "two", ""},
		{"neither of the first two is", "file:none.json,file:none,file:two.json", "two", ""},
		{"a socket that is not there", "kubelet:none.sock,file:two.json", "two", ""},
		{"the first is there and fails", "file:bad.json,file:two.json", "", "ends in the middle"},
		{"none is there", "file:none.json,file:none", "", "none.json"},
		{"a file in the place of a directory is not its absence", "file:one.json/x,file:two.json", "", "one.json/x"},
		{"a comma in a path", "file:a,b.json", "comma", ""},
	} {
		spec := strings.NewReplacer("file:", "file:"+dir+"/", "kubelet:", "kubelet:"+dir+"/").Replace(row.spec)
		s, err := Parse([]string{spec}, Env{})
		if err != nil {
			t.Fatalf("%s: %v", row.reason, err)
		}
		pods, err := podsOf(t, s)
		switch {
		case row.err != "":
			if err == nil || !strings.Contains(err.Error(), row.err) {
				t.Errorf("%s: %v", row.reason, err)
			}
		case err != nil || len(pods) != 1 || pods[0].Name != row.want:
			t.Errorf("%s: %v, %v", row.reason, pods, err)
		}
	}
}
