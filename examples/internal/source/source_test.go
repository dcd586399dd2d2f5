// SPDX-License-Identifier: Apache-2.0

package source

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/node"
)

// What the flags say reaches the sources. An error is that of Parse, or of the first question.
func TestParse(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"agent": `[{"namespace":"a","name":"agent"}]`, "web": `[{"name":"web"}]`, "empty": "[]"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	required := Env{Options: node.Options{Require: []types.NamespacedName{{Namespace: "a", Name: "agent"}}}}
	const unasked = -1 // the sources are the machine's
	for _, row := range []struct {
		reason, specs string
		env           Env
		pods          int
		want          string // part of the error, or empty
	}{
		{"the usual node", "", Env{}, unasked, ""},
		{"all kinds, and several of those that a node may have several of",
			"file:a file:b kubelet kube:n cri cri:/run/crio/crio.sock netns:nested cnicache cnicache:/var/lib/cni/multus/results",
			Env{}, unasked, ""},
		{"an unknown kind", "docker", Env{}, 0, `pod source "docker": there is no kind "docker"; the kinds are file:PATH, kubelet[:SOCKET]`},
		{"stdin can be read once only", "file:- file:-", Env{Stdin: strings.NewReader("")}, 0, `pod source "file:-": it was given twice`},
		{"two nodes", "kube:a kube:b", Env{}, 0, "there is one kube on a node"},
		{"no path", "file", Env{}, 0, `pod source "file": a path is missing`},
		{"an endpoint that is none", "cri:tcp://127.0.0.1:1", Env{}, 0, `endpoint "tcp://127.0.0.1:1" is not`},
		{"the second one", "cri cri:tcp://127.0.0.1:1", Env{}, 0, `endpoint "tcp://127.0.0.1:1" is not`},
		{"a directory of namespaces need not be named", "netns:/run/netns", Env{}, 0, `there is no "/run/netns"; only "nested" may stand there`},
		{"a relative path", "netns cnicache:results", Env{}, 0, `"results" is not an absolute path`},
		{"nobody lists it by its name", "netns", required, 0, `"a/agent" can't be required`},
		{"files stand side by side", "file:agent file:web", Env{}, 2, ""},
		{"stdin", "file:- file:web", Env{Stdin: strings.NewReader("[{}]")}, 2, ""},
		{"an empty list is one", "file:empty", Env{Options: node.Options{AllowEmpty: true}}, 0, ""},
		{"the first file must list the required pod", "file:agent file:web", required, 2, ""},
		{"not the second alone", "file:web file:agent", required, 0, "the required a/agent"},
		{"a runtime is asked before files", "file:none cri:/no/such/socket", Env{}, 0, "container runtime at "},
		{"all runtimes must answer", "cri:/no/such/first cri:/no/such/second", Env{}, 0, "/no/such/first"},
		{"kubelet is where it was said to be", "kubelet:/no/such/socket", Env{}, 0, "/no/such/socket"},
		{"the kubeconfig is the one that was named", "kube:n", Env{Kubeconfig: "/no/such/config"}, 0, "/no/such/config"},
		{"and where kubelet has no API, it is used, too", "kubelet:/no/such/socket kube", Env{Kubeconfig: "/no/such/config"}, 0,
			"/no/such/config"},
	} {
		s, err := Parse(strings.Fields(row.specs), row.env)
		var a podsource.Answer
		if err == nil && row.pods != unasked {
			a, err = s.Pods(t.Context())
		}
		if (err != nil) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got error %v, want %q", row.reason, err, row.want)
		}
		pods := 0
		for _, m := range a.Members() {
			if pods += len(m.Pods); err == nil && row.pods != unasked && m.Authoritative != row.env.AllowEmpty {
				t.Errorf("%s: %+v may be empty: %t", row.reason, m, m.Authoritative)
			}
		}
		if err == nil && pods != max(0, row.pods) {
			t.Errorf("%s: got %d pods, want %d", row.reason, pods, row.pods)
		}
	}
}
