// SPDX-License-Identifier: Apache-2.0

package cnigc_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc"
)

// files are the reservations of each row: as host-local writes them today, a
// second interface's, and as it wrote them before v0.8.0.
var files = map[string]string{"10.0.0.2": "a\r\neth0", "10.0.0.3": "a\r\nnet1", "10.0.0.4": "b", "fd00::5": "c\r\neth0"}

// pass runs a pass over these reservations, and returns those that are left.
func pass(t *testing.T, source podsource.Source) (left []string, err error) {
	t.Helper()
	dataDir := t.TempDir()
	dir := filepath.Join(dataDir, "n")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		old := time.Now().Add(-time.Hour)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	store, err := hostlocal.New(dataDir, "n")
	if err != nil {
		t.Fatal(err)
	}
	_, err = gc.New(store, source, gc.Options{}).Reconcile(t.Context())
	names, readErr := os.ReadDir(dir)
	if readErr != nil {
		t.Fatal(readErr)
	}
	for _, n := range names {
		if n.Name() != "lock" {
			left = append(left, n.Name())
		}
	}
	return left, err
}

// The list is there, or it is an error. Where it says that nobody is valid, the
// source vouches for it, and the pass is not refused (R9).
func TestHazard27ValidAttachments(t *testing.T) {
	for _, row := range []struct {
		reason, stdin string
		left          []string
	}{
		{"null: nobody is valid", `{"cni.dev/valid-attachments":null}`, nil},
		{"empty: nobody is valid", `{"name":"n","cni.dev/valid-attachments":[]}`, nil},
		{"one container: what its other interface holds is kept, too",
			`{"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`, []string{"10.0.0.2", "10.0.0.3"}},
		{"both interfaces", `{"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"a","ifname":"net1"}]}`,
			[]string{"10.0.0.2", "10.0.0.3"}},
		{"an owner that is a container ID alone", `{"cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}]}`, []string{"10.0.0.4"}},
		{"as libcni sends it", `{"cni.dev/attachments":[{"containerID":"c","ifname":"eth0"}],"cni.dev/valid-attachments":` +
			`[{"containerID":"c","ifname":"eth0"}],"cniVersion":"1.1.0","name":"n","type":"x"}`, []string{"fd00::5"}},
		{"as libcni sends null", `{"cni.dev/attachments":null,"cni.dev/valid-attachments":null,"cniVersion":"1.1.0"}`, nil},
		{"the earlier wording alone", `{"cni.dev/attachments":[{"containerID":"b","ifname":"eth0"}]}`, []string{"10.0.0.4"}},
		{"both, and they differ: either keeps",
			`{"cni.dev/attachments":[{"containerID":"b"}],"cni.dev/valid-attachments":[{"containerID":"c"}]}`, []string{"10.0.0.4", "fd00::5"}},
		{"both, and one is null: the other keeps",
			`{"cni.dev/attachments":[{"containerID":"b"}],"cni.dev/valid-attachments":null}`, []string{"10.0.0.4"}},
		{"unknown keys, in the request and in an attachment",
			`{"cni.dev/new":[{}],"Cni.dev/valid-attachments":[],"cni.dev/valid-attachments":[{"new":{"containerID":"b"},"containerID":"a","containerid":"c","ifname":7}]}`,
			[]string{"10.0.0.2", "10.0.0.3"}},
		{"a container of which nothing is reserved", ` {"cni.dev/valid-attachments" : [ {"containerID" : "x"} ] } ` + "\n", nil},
	} {
		t.Run(row.reason, func(t *testing.T) {
			source, err := cnigc.FromConfig([]byte(row.stdin))
			if err != nil {
				t.Fatal(err)
			}
			left, err := pass(t, source)
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(row.left, left); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHazard27NoValidAttachments(t *testing.T) {
	for _, row := range []struct{ reason, stdin, want string }{
		{"the list is missing: libcni without arguments", `{"cniVersion":"1.1.0","name":"n","type":"x"}`, "cni.dev/valid-attachments"},
		{"in another letter case", `{"CNI.dev/valid-attachments":[]}`, "cni.dev/valid-attachments"},
		{"no request at all", ``, "unexpected EOF"},
		{"not an object", `[]`, "not a JSON object"},
		{"null", `null`, "not a JSON object"},
		{"not JSON", `GC`, "invalid"},
		{"something after the end", `{"cni.dev/valid-attachments":[]} {}`, "follows"},
		{"garbage after the end", `{"cni.dev/valid-attachments":[]}]`, "follows"},
		{"the list twice", `{"cni.dev/valid-attachments":[{"containerID":"a"}],"cni.dev/valid-attachments":[]}`, "twice"},
		{"a list that is an object", `{"cni.dev/valid-attachments":{}}`, "cni.dev/valid-attachments"},
		{"a list that is a string", `{"cni.dev/valid-attachments":"a"}`, "cni.dev/valid-attachments"},
		{"the other list is no list", `{"cni.dev/valid-attachments":[],"cni.dev/attachments":0}`, "cni.dev/attachments"},
		{"null for an attachment", `{"cni.dev/valid-attachments":[null]}`, "attachment 1"},
		{"a string for an attachment", `{"cni.dev/valid-attachments":[{"containerID":"a"},"b"]}`, "attachment 2"},
		{"no container ID", `{"cni.dev/valid-attachments":[{"containerID":"a"},{"ifname":"eth0"}]}`, "attachment 2: it has no containerID"},
		{"a container ID in another letter case", `{"cni.dev/valid-attachments":[{"containerid":"a"}]}`, "no containerID"},
		{"null for one", `{"cni.dev/valid-attachments":[{"containerID":null}]}`, "not a container ID"},
		{"an empty one", `{"cni.dev/valid-attachments":[{"containerID":""}]}`, "not a container ID"},
		{"a number", `{"cni.dev/valid-attachments":[{"containerID":7}]}`, "containerID"},
		{"two of them", `{"cni.dev/valid-attachments":[{"containerID":"a","containerID":"b"}]}`, "twice"},
		{"one with a scheme", `{"cni.dev/valid-attachments":[{"containerID":"containerd://a"}]}`, "not a container ID"},
		{"one with bytes that JSON replaces", "{\"cni.dev/valid-attachments\":[{\"containerID\":\"a\xff\"}]}", "not a container ID"},
	} {
		source, err := cnigc.FromConfig([]byte(row.stdin))
		if err == nil || source != nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, %v, want an error that says %q", row.reason, source, err, row.want)
		}
	}
	const request = `{"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}],"name":"n"}`
	for size := range len(request) {
		if source, err := cnigc.FromConfig([]byte(request[:size])); err == nil || source != nil {
			t.Errorf("truncated to %q: %v, %v, want an error", request[:size], source, err)
		}
	}
}

// The same list of nobody, without the request's word for it, is refused.
func TestHazard34NobodyIsValid(t *testing.T) {
	left, err := pass(t, podsource.Static{})
	if !errors.Is(err, gc.ErrNoPods) || len(left) != len(files) {
		t.Errorf("left %v, %v, want all and %v", left, err, gc.ErrNoPods)
	}
	source, err := cnigc.FromConfig([]byte(`{"cni.dev/valid-attachments":null}`))
	if err != nil {
		t.Fatal(err)
	}
	for reason, source := range map[string]podsource.Source{
		"alone": source, "with an idle runtime": podsource.Union(podsource.Static{}, source),
	} {
		if left, err := pass(t, source); err != nil || left != nil {
			t.Errorf("%s: left %v, %v, want nothing", reason, left, err)
		}
	}
}

// FuzzFromConfig: any bytes are a request or an error, and the container IDs of
// a request can be any that CNI allows, each once.
func FuzzFromConfig(f *testing.F) {
	for _, seed := range []string{
		`{"cni.dev/valid-attachments":null}`, `{"cni.dev/attachments":[]}`, `{}`, `{"a":1,"a":2}`,
		`{"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"a","ifname":"net1"}],"cni.dev/attachments":[{"containerID":"b"}]}`,
		`{"cni.dev/valid-attachments":[{"containerID":"\ud800"}]}`, `{"cni.dev/valid-attachments":[{"containerID":"a","containerID":"b"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stdin []byte) {
		source, err := cnigc.FromConfig(stdin)
		if err != nil {
			if source != nil {
				t.Errorf("%v came with %v", source, err)
			}
			return
		}
		pods, err := source.Pods(t.Context())
		if err != nil || len(pods) == 0 {
			t.Fatalf("%v, %v", pods, err)
		}
		seen := make(map[string]bool)
		for _, p := range pods {
			if p.HostNetwork && len(pods) == 1 {
				break
			}
			if len(p.ContainerIDs) != 1 || seen[p.ContainerIDs[0]] || strings.ContainsAny(p.ContainerIDs[0], "/: \t\r\n\ufffd") {
				t.Errorf("%v", pods)
			}
			seen[p.ContainerIDs[0]] = true
		}
	})
}
