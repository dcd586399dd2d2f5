// SPDX-License-Identifier: Apache-2.0

package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func TestParse(t *testing.T) {
	agent := []types.NamespacedName{{Namespace: "a", Name: "agent"}}
	for _, row := range []struct {
		reason, specs string
		env           Env
		want          string // part of the error, or empty
	}{
		{"the usual node", "", Env{}, ""},
		{"all kinds, and several of those that a node may have several of",
			"file:a file:b kubelet kube:n cri cri:/run/crio/crio.sock netns:nested cnicache cnicache:/var/lib/cni/multus/results", Env{}, ""},
		{"an unknown kind", "docker", Env{}, `pod source "docker": there is no kind "docker"; the kinds are file:PATH, kubelet[:SOCKET]`},
		{"a path without a kind", "/run/pods.json", Env{}, `there is no kind "/run/pods.json"`},
		{"stdin can be read once only", "file:- file:-", Env{Stdin: strings.NewReader("")}, `pod source "file:-": it was given twice`},
		{"two nodes", "kube:a kube:b", Env{}, "there is one kube on a node"},
		{"no path", "file", Env{}, `pod source "file": a path is missing`},
		{"an endpoint that is none", "cri:tcp://127.0.0.1:1", Env{}, `endpoint "tcp://127.0.0.1:1" is not`},
		{"the second one", "cri cri:tcp://127.0.0.1:1", Env{}, `endpoint "tcp://127.0.0.1:1" is not`},
		{"a directory of namespaces need not be named", "netns:/run/netns", Env{}, `there is no "/run/netns"; only "nested" may stand there`},
		{"a relative path", "netns cnicache:results", Env{}, `"results" is not an absolute path`},
		{"nobody lists it by its name", "netns", Env{Require: agent}, `"a/agent" can't be required`},
	} {
		if _, err := Parse(strings.Fields(row.specs), row.env); (err != nil) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got error %v, want %q", row.reason, err, row.want)
		}
	}
}

// What the other flags say reaches the sources.
func TestEnv(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"agent": `[{"namespace":"a","name":"agent"}]`, "web": `[{"name":"web"}]`, "empty": "[]"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	required := Env{Require: []types.NamespacedName{{Namespace: "a", Name: "agent"}}}
	missing := filepath.Join(t.TempDir(), "missing")
	for _, row := range []struct {
		reason, specs string
		env           Env
		pods          int
		want          string // part of the error, or empty
	}{
		{"files stand side by side", "file:agent file:web", Env{}, 2, ""},
		{"stdin", "file:- file:web", Env{Stdin: strings.NewReader("[{}]")}, 2, ""},
		{"an empty list is one", "file:empty", Env{AllowEmpty: true}, 0, ""},
		{"the first file must list the required pod", "file:agent file:web", required, 2, ""},
		{"not the second alone", "file:web file:agent", required, 0, "the required a/agent"},
		{"a runtime is asked before files", "file:none cri:/no/such/socket", Env{}, 0, "container runtime at "},
		{"all runtimes must answer", "cri:/no/such/first cri:/no/such/second", Env{}, 0, "/no/such/first"},
		{"kubelet is where it was said to be", "kubelet:/no/such/socket", Env{}, 0, "/no/such/socket"},
		{"the kubeconfig is the one that was named", "kube:n", Env{Kubeconfig: missing}, 0, missing},
		{"and where kubelet has no API, it is used, too", "kubelet:/no/such/socket kube", Env{Kubeconfig: missing}, 0, missing},
	} {
		s, err := Parse(strings.Fields(row.specs), row.env)
		if err != nil {
			t.Fatalf("%s: %v", row.reason, err)
		}
		a, err := s.Pods(t.Context())
		if (err != nil) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got error %v, want %q", row.reason, err, row.want)
		}
		var pods []podsource.Pod
		for _, m := range a.Members() {
			pods = append(pods, m.Pods...)
			if m.Authoritative != row.env.AllowEmpty {
				t.Errorf("%s: %+v may be empty: %t", row.reason, m, m.Authoritative)
			}
		}
		if err == nil && len(pods) != row.pods {
			t.Errorf("%s: got %v, want %d pods", row.reason, pods, row.pods)
		}
	}
}

// The longest ADD follows kubelet's setting, as StartingFor does.
func TestLongestADD(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0: gc.DefaultStartingFor, gc.DefaultRuntimeRequestTimeout: gc.DefaultStartingFor, 15 * time.Minute: 40 * time.Minute,
		-time.Minute: 10 * time.Minute,
	} {
		if got := LongestADD(timeout); got != want {
			t.Errorf("with a timeout of %v: got %v, want %v", timeout, got, want)
		}
	}
}
