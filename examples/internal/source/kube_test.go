// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// kubeconfig writes a kubeconfig for the server.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestKubeNode: the request is for the right node.
func TestKubeNode(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ reason, spec, env, variable, want string }{
		{"it is named", "kube:named", "env", "variable", "named"},
		{"the command knows it", "kube", "env", "variable", "env"},
		{"the downward API sets it", "kube", "", "variable", "variable"},
		{"the host's name, in the letters in which kubelet registers it", "kube:", "", "", strings.ToLower(host)},
	} {
		t.Run(row.reason, func(t *testing.T) {
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.Path)
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusNotFound)
				_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"no such node"}`))
			}))
			defer server.Close()
			t.Setenv("NODE_NAME", row.variable)
			s, err := Parse([]string{row.spec}, Env{Node: row.env, Kubeconfig: kubeconfig(t, server.URL)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Pods(t.Context())
			if _, errBoot := os.Stat("/proc/sys/kernel/random/boot_id"); errBoot != nil {
				t.Logf("this system has no boot ID, so nobody is asked: %v", err)
				return
			}
			if want := "node " + row.want + ": there is no such Node"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got error %v, want one that says %q", err, want)
			}
			if want := "/api/v1/nodes/" + row.want; len(asked) != 1 || asked[0] != want {
				t.Errorf("asked for %q, want %q", asked, want)
			}
		})
	}
}

// TestKubeUnreachable: the errors say what is missing. None is ErrNotHere, which would
// make a fallback ask the next source.
func TestKubeUnreachable(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	for _, row := range []struct{ reason, kubeconfig, want string }{
		{"no pod and no kubeconfig", "", "--kubeconfig"},
		{"a kubeconfig that is not there", missing, missing},
		{"a kubeconfig that is none", broken, "reading the kubeconfig"},
	} {
		s, err := Parse([]string{"kube:here"}, Env{Kubeconfig: row.kubeconfig})
		if err != nil {
			t.Fatalf("%s: Parse reads it: %v", row.reason, err)
		}
		_, err = s.Pods(t.Context())
		if err == nil || !strings.Contains(err.Error(), row.want) || errors.Is(err, podsource.ErrNotHere) {
			t.Errorf("%s: got error %v, want one that says %q", row.reason, err, row.want)
		}
	}
}

// TestKubeNameOfNoNode: a name that no node can have is a permanent error.
func TestKubeNameOfNoNode(t *testing.T) {
	s, err := Parse([]string{"kube:Node_1"}, Env{Kubeconfig: kubeconfig(t, "http://127.0.0.1:1")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pods(t.Context()); !errors.Is(err, podsource.ErrPermanent) || !strings.Contains(err.Error(), `no Node can have the name "Node_1"`) {
		t.Errorf("got error %v", err)
	}
}

// TestKubeconfigComesLate: a file that could not be read is read again.
func TestKubeconfigComesLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	s, err := Parse([]string{"kube:here"}, Env{Kubeconfig: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "reading the kubeconfig") {
		t.Fatalf("got error %v", err)
	}
	if err := os.Rename(kubeconfig(t, "http://127.0.0.1:1"), path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pods(t.Context()); err == nil || strings.Contains(err.Error(), "reading the kubeconfig") {
		t.Errorf("got error %v", err)
	}
}

func TestForms(t *testing.T) {
	forms, completions := strings.Join(Forms(), " "), strings.Join(Completions(), " ")
	if !strings.Contains(forms, "file:PATH") || !strings.Contains(forms, "kube[:NODE]") {
		t.Errorf("forms: %s", forms)
	}
	if !strings.Contains(completions, "file: kubelet kubelet: kube kube: cri") {
		t.Errorf("completions: %s", completions)
	}
}
