// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// variable is the environment variable of crictl. It may be set where the tests run.
const variable = "CONTAINER_RUNTIME_ENDPOINT"

func TestMain(m *testing.M) {
	if err := os.Unsetenv(variable); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// Each of several runtimes may have pods, so all that are found, and the one that is named, must answer (hazard 29).
func TestSearch(t *testing.T) {
	w, d := pod("a1", "web"), pod("b1", "db")
	web := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox("a1", "web", ready)}}).socket
	db := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox("b1", "db", ready)}}).socket
	docker := serve(t, &fakeRuntime{called: failing("sandboxes", status.Error(codes.Unimplemented, "unknown service"))}).socket
	recovering := serve(t, &fakeRuntime{called: failing("sandboxes", status.Error(codes.Unavailable, "no"))}).socket
	idle, stale := serve(t, &fakeRuntime{}).socket, staleSocket(t)
	none, link := filepath.Join(t.TempDir(), "none"), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(web, link); err != nil {
		t.Fatal(err)
	}
	const noSocket = " says): list of pods is incomplete: there is no socket"
	type pods = []podsource.Pod
	for _, row := range []struct {
		reason      string
		env, crictl string // the value of the variable, and of the endpoint in crictl's configuration
		sockets     []string
		want        pods
		says        []string // parts of the error; nil for none
	}{
		{reason: "only the second exists", sockets: []string{none, db}, want: pods{d}},
		{reason: "Docker's containerd does not serve the CRI", sockets: []string{docker, none, db}, want: pods{d}},
		{reason: "both exist, and either may have the pods", sockets: []string{web, db}, want: pods{w, d}},
		{reason: "the first is recovering: it may have the pods", sockets: []string{recovering, db}, says: []string{recovering}},
		{reason: "the second is recovering", sockets: []string{web, recovering}, says: []string{recovering}},
		{reason: "the first was killed: its sandboxes may run", sockets: []string{stale, db}, says: []string{stale}},
		{reason: "two names of one socket: one call", sockets: []string{web, link}, want: pods{w}},
		{reason: "an idle one, and the one with the pods", sockets: []string{idle, db}, want: pods{d}},
		{reason: "only an idle one (hazard 53)", sockets: []string{idle, none}, says: []string{idle + " (no sandbox)", "name its endpoint"}},
		{reason: "none exists", sockets: []string{none, docker}, says: []string{none + " (list of pods is incomplete: there is no socket)", docker + " (listing sandboxes: "}},
		{reason: "the variable names it", env: "unix://" + db, sockets: []string{web}, want: pods{d, w}},
		{reason: "crictl's configuration names it", crictl: db, sockets: []string{web}, want: pods{d, w}},
		{reason: "... and the variable comes first", env: db, crictl: none, sockets: []string{web}, want: pods{d, w}},
		{reason: "it is one of the defaults", crictl: link, sockets: []string{web}, want: pods{w}},
		{reason: "the named runtime is idle, and the default one is not", env: idle, sockets: []string{web}, want: pods{w}},
		{reason: "the named runtime has no socket", env: none, sockets: []string{web}, says: []string{none + " (so $" + variable + noSocket}},
		{reason: "the same in crictl's configuration", crictl: none, sockets: []string{web}, says: []string{"crictl.yaml" + noSocket}},
		{reason: "the named runtime does not serve the CRI", env: docker, sockets: []string{web}, says: []string{"version 1 of the CRI"}},
		{reason: "the variable has no valid endpoint", env: "crio", says: []string{"$" + variable + `: endpoint "crio" is not`}},
		{reason: "crictl's configuration has no valid endpoint", crictl: "x", says: []string{`crictl.yaml: endpoint "x" is not`}},
		{reason: "crictl's configuration can't be parsed", crictl: "{", says: []string{"crictl.yaml: error converting YAML to JSON"}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			t.Setenv(variable, row.env)
			var found []string
			opts := cri.Options{Logger: funcr.New(func(_, args string) { found = append(found, args) }, funcr.Options{})}
			if row.crictl != "" {
				opts.CrictlConfig = filepath.Join(t.TempDir(), "crictl.yaml")
				if err := os.WriteFile(opts.CrictlConfig, []byte("debug: false\nruntime-endpoint: "+row.crictl+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := cri.Among(opts, row.sockets...)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				got, err := s.Pods(t.Context())
				want := answer(row.want...)
				if row.says != nil {
					want = nameOnly
				}
				if diff := cmp.Diff(want, got, equal); diff != "" || (err == nil) != (row.says == nil) || errors.Is(err, podsource.ErrNotHere) {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				for _, says := range row.says {
					if !strings.Contains(fmt.Sprint(err), says) {
						t.Errorf("%v does not say %q", err, says)
					}
				}
			}
			if slices.Sort(found); len(found) < len(row.want) || len(slices.Compact(slices.Clone(found))) < len(found) {
				t.Errorf("logged %q in two calls, want one line for each runtime", found)
			}
		})
	}
}

// A runtime that answered once must answer in later calls, also if it is no longer named, since its sandboxes may run.
func TestRuntimeMissingAfterItAnswered(t *testing.T) {
	usual := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox("a1", "web", ready)}}).socket
	own := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{sandbox("b1", "db", ready)}}).socket
	s, err := cri.Among(cri.Options{}, usual)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(when, named, without string) {
		t.Helper()
		t.Setenv(variable, named)
		got, err := s.Pods(t.Context())
		if without == "" && (err != nil || len(got.Pods) != 2) ||
			without != "" && (!errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), without)) {
			t.Errorf("%s: got %d pods, %v", when, len(got.Pods), err)
		}
	}
	ask("it is named", own, "")
	ask("another one is named", usual, "")
	for _, socket := range []string{own, usual} {
		if err := os.Rename(socket, socket+"-stopped"); err != nil {
			t.Fatal(err)
		}
		ask("its socket is missing", "", socket)
		if err := os.Rename(socket+"-stopped", socket); err != nil {
			t.Fatal(err)
		}
	}
	ask("both are back", "", "")
}

// The default endpoints are valid. A runtime is asked before kubelet and the API server, and after sources of ADDs and addresses.
func TestDefaults(t *testing.T) {
	if got := source(t, "", cri.Options{}).Rank(); got != podsource.RankRuntime {
		t.Errorf("its rank is %d, want %d", got, podsource.RankRuntime)
	}
	if k3s := "unix:///run/k3s/containerd/containerd.sock"; !slices.Contains(cri.DefaultEndpoints(), k3s) {
		t.Errorf("%s is not among them", k3s)
	}
}

func TestCrictlConfig(t *testing.T) {
	for _, row := range []struct{ reason, text, want, says string }{
		{"as crictl config writes it", "runtime-endpoint: \"unix:///x\"\nimage-endpoint: \"\"\ntimeout: 0\n", "unix:///x", ""},
		{"a comment after a plain value", "runtime-endpoint: /run/x.sock\t# ours\r\n", "/run/x.sock", ""},
		{"a value on the next line, in a document", "---\n  runtime-endpoint:\n    '/x'\n", "/x", ""},
		{"empty", "", "", ""},
		{"without a value", "runtime-endpoint: # none\n", "", ""},
		{"another key", "my-runtime-endpoint: /x", "", ""},
		{"no space after the colon", "runtime-endpoint:/x", "", "cannot unmarshal string"},
		{"a list", "- runtime-endpoint: /x", "", "cannot unmarshal array"},
		{"no text", "runtime-endpoint: [/x]", "", "runtime-endpoint is [/x], which is no text"},
		{"not YAML", "runtime-endpoint: \"/x", "", "yaml: "},
		{"twice", "runtime-endpoint: /x\nruntime-endpoint: /y\n", "", `key "runtime-endpoint" already set`},
	} {
		got, err := cri.RuntimeEndpoint([]byte(row.text))
		if got != row.want || (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: got %q, %v, want %q, %q", row.reason, got, err, row.want, row.says)
		}
	}
	s, err := cri.Among(cri.Options{CrictlConfig: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Pods(t.Context()); !cmp.Equal(got, nameOnly, equal) || !strings.Contains(fmt.Sprint(err), "reading crictl's") {
		t.Errorf("got %v, %v for a configuration that can't be read", got, err)
	}
}
