// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
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

func TestSearch(t *testing.T) {
	web, db := sandbox("a1", "web", ready), sandbox("b1", "db", ready)
	none := filepath.Join(t.TempDir(), "none")
	first := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web}}).socket
	second := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{db}}).socket
	docker := serve(t, &fakeRuntime{listing: func(context.Context) error {
		return status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")
	}}).socket
	recovering := serve(t, &fakeRuntime{listing: func(context.Context) error { return status.Error(codes.Unavailable, "no") }}).socket
	idle := serve(t, &fakeRuntime{}).socket
	stale, link := staleSocket(t), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(first, link); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		reason  string
		sockets []string
		want    []podsource.Pod
		found   []string
		says    []string // parts of the error; nil for none
	}{
		{reason: "only the first exists", sockets: []string{first, none}, want: []podsource.Pod{pod("a1", "web")}, found: []string{first}},
		{reason: "only the second exists", sockets: []string{none, second}, want: []podsource.Pod{pod("b1", "db")}, found: []string{second}},
		{reason: "Docker's containerd does not serve the CRI", sockets: []string{docker, none, second}, want: []podsource.Pod{pod("b1", "db")}, found: []string{second}},
		{reason: "both exist, and either may have the pods", sockets: []string{first, second},
			want: []podsource.Pod{pod("a1", "web"), pod("b1", "db")}, found: []string{first, second}},
		{reason: "the first is recovering: it may have the pods", sockets: []string{recovering, second}, says: []string{recovering}},
		{reason: "the second is recovering", sockets: []string{first, recovering}, says: []string{recovering}, found: []string{first}},
		{reason: "the first was killed: its sandboxes may run", sockets: []string{stale, second}, says: []string{stale}},
		{reason: "two names of one socket: one call", sockets: []string{first, link}, want: []podsource.Pod{pod("a1", "web")}, found: []string{first}},
		{reason: "an idle one, and the one with the pods", sockets: []string{idle, second}, want: []podsource.Pod{pod("b1", "db")}, found: []string{idle, second}},
		{reason: "only an idle one", sockets: []string{idle, none}, found: []string{idle}, says: []string{"unix://" + idle + " (no sandbox)", "name its endpoint"}},
		{reason: "none exists", sockets: []string{none, docker, none + "2"},
			says: []string{"unix://" + none + " (", "unix://" + docker + " (", "unix://" + none + "2 (", "name its endpoint"}},
	} {
		var log []string
		logger := funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{})
		s, err := cri.Among(cri.Options{Logger: logger}, row.sockets...)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := s.Pods(t.Context())
			if (err != nil) != (row.says != nil) || err != nil && !errors.Is(err, podsource.ErrIncomplete) || errors.Is(err, podsource.ErrNotHere) {
				t.Errorf("got %v: %s", err, row.reason)
			}
			for _, says := range row.says {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%v does not say %q: %s", err, says, row.reason)
				}
			}
			want := nameOnly
			if row.says == nil {
				want = answer(row.want...)
			}
			if diff := cmp.Diff(want, got, equal); diff != "" {
				t.Errorf("%s (-want +got):\n%s", row.reason, diff)
			}
		}
		var want []string
		for _, path := range row.found {
			want = append(want, "unix://"+path)
		}
		if got := s.Endpoints(); !slices.Equal(got, want) {
			t.Errorf("found %q, want %q: %s", got, want, row.reason)
		}
		if len(log) != len(want) {
			t.Errorf("logged %q in two passes, want one line for each of %q", log, want)
		}
	}
}

// A runtime that answered once must answer in later calls, since its sandboxes may run.
func TestRuntimeMissingAfterItAnswered(t *testing.T) {
	web, db := sandbox("a1", "web", ready), sandbox("b1", "db", ready)
	first := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web}})
	second := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{db}})
	s, err := cri.Among(cri.Options{}, first.socket, second.socket)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Pods(t.Context()); len(got.Pods) != 2 || err != nil {
		t.Fatalf("got %v, %v", got, err)
	}
	if err := os.Rename(first.socket, first.socket+"-stopped"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Pods(t.Context()); !cmp.Equal(got, nameOnly, equal) || !errors.Is(err, podsource.ErrIncomplete) || !strings.Contains(err.Error(), first.socket) {
		t.Errorf("got %v, %v, want an error about %s", got, err, first.socket)
	}
	if err := os.Rename(first.socket+"-stopped", first.socket); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Pods(t.Context()); len(got.Pods) != 2 || err != nil {
		t.Errorf("it is back: got %v, %v", got, err)
	}
}

// The default endpoints must be valid, since New without an endpoint parses them.
func TestDefaultEndpoints(t *testing.T) {
	s := source(t, "", cri.Options{})
	if got := s.Endpoints(); got != nil {
		t.Errorf("no runtime was asked, but Endpoints returned %q", got)
	}
	distributions := []string{"/run/containerd/", "/run/crio/", "/run/cri-dockerd.sock", "/run/k3s/containerd/", "/run/k3s/cri-dockerd/", "/run/k0s/", "/var/snap/microk8s/"}
	if runtime.GOOS == "windows" {
		distributions = []string{"/containerd", "/cri-dockerd"}
	}
	for _, part := range distributions {
		if !slices.ContainsFunc(cri.DefaultEndpoints(), func(e string) bool { return strings.Contains(e, part) }) {
			t.Errorf("no endpoint contains %s", part)
		}
	}
}

// A runtime that is named must answer. Its sandboxes are added to those of the defaults.
func TestNamedRuntime(t *testing.T) {
	web, db := sandbox("a1", "web", ready), sandbox("b1", "db", ready)
	usual := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{web}}).socket
	own := serve(t, &fakeRuntime{items: []*runtimeapi.PodSandbox{db}}).socket
	idle := serve(t, &fakeRuntime{}).socket
	docker := serve(t, &fakeRuntime{listing: func(context.Context) error {
		return status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService")
	}}).socket
	none := filepath.Join(t.TempDir(), "none")
	both := []podsource.Pod{pod("b1", "db"), pod("a1", "web")}
	for _, row := range []struct {
		reason           string
		variable, crictl string // the value of the variable, and a line of crictl's configuration
		places           []string
		want             []podsource.Pod
		says             string // a part of the error; "" for none
	}{
		{reason: "the variable names it", variable: "unix://" + own, places: []string{usual}, want: both},
		{reason: "the variable names it, as a path", variable: own, places: []string{none}, want: both[:1]},
		{reason: "crictl's configuration names it", crictl: "runtime-endpoint: unix://" + own, places: []string{usual}, want: both},
		{reason: "... and the variable comes first", variable: own, crictl: "runtime-endpoint: unix://" + none, places: []string{usual}, want: both},
		{reason: "it is one of the defaults", crictl: "runtime-endpoint: " + usual, places: []string{usual}, want: both[1:]},
		{reason: "none is named", crictl: "timeout: 10", places: []string{usual}, want: both[1:]},
		{reason: "the named runtime is idle, and the default one is not", variable: idle, places: []string{usual}, want: both[1:]},
		{reason: "the named runtime has no socket: its sandboxes may run", variable: none, places: []string{usual}, says: none + " (so $" + variable + " says): list of pods is incomplete: there is no socket"},
		{reason: "the runtime in crictl's configuration has no socket", crictl: "runtime-endpoint: " + none, places: []string{usual}, says: "crictl.yaml says): list of pods is incomplete: there is no socket"},
		{reason: "the named runtime does not serve the CRI", variable: docker, places: []string{usual}, says: "does not serve version 1 of the CRI"},
		{reason: "the variable has no valid endpoint", variable: "containerd", places: []string{usual}, says: "$" + variable + `: endpoint "containerd" is not`},
		{reason: "crictl's configuration has no valid endpoint", crictl: "runtime-endpoint: tcp://127.0.0.1:1", places: []string{usual}, says: `crictl.yaml: endpoint "tcp://127.0.0.1:1" is not`},
		{reason: "crictl's configuration can't be parsed", crictl: "{runtime-endpoint: x}", places: []string{usual}, says: `crictl.yaml: "{runtime-endpoint: x}" can't be parsed`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			t.Setenv(variable, row.variable)
			opts := cri.Options{CrictlConfig: filepath.Join(t.TempDir(), "crictl.yaml")}
			if row.crictl != "" {
				if err := os.WriteFile(opts.CrictlConfig, []byte("debug: false\n"+row.crictl+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := cri.Among(opts, row.places...)
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.Pods(t.Context())
			want := answer(row.want...)
			if row.says != "" {
				want = nameOnly
			}
			if diff := cmp.Diff(want, got, equal); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
				t.Errorf("%v does not say %q", err, row.says)
			}
		})
	}
	t.Run("a configuration that can't be read", func(t *testing.T) {
		s, err := cri.Among(cri.Options{CrictlConfig: t.TempDir()}, usual)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Pods(t.Context()); !cmp.Equal(got, nameOnly, equal) || err == nil || !strings.Contains(err.Error(), "reading crictl's configuration") {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("a runtime that answered is asked again, also if it is no longer named", func(t *testing.T) {
		t.Setenv(variable, own)
		s, err := cri.Among(cri.Options{}, usual)
		if err != nil {
			t.Fatal(err)
		}
		for _, now := range []string{own, usual, ""} {
			t.Setenv(variable, now)
			if got, err := s.Pods(t.Context()); len(got.Pods) != 2 || err != nil {
				t.Errorf("with %q: got %v, %v", now, got, err)
			}
		}
	})
}

func TestCrictlConfig(t *testing.T) {
	for _, row := range []struct{ reason, text, want, says string }{
		{"as kops writes it", "\nruntime-endpoint: unix:///run/containerd/containerd.sock\n", "unix:///run/containerd/containerd.sock", ""},
		{"as crictl config writes it", "runtime-endpoint: \"unix:///run/crio/crio.sock\"\nimage-endpoint: \"\"\ntimeout: 0\ndebug: false\n", "unix:///run/crio/crio.sock", ""},
		{"with single quotes, and a comment", "'runtime-endpoint' :  'unix:///x' # ours", "unix:///x", ""},
		{"a comment after a plain value", "runtime-endpoint: /run/x.sock\t# ours\r\n", "/run/x.sock", ""},
		{"a # in the value", "runtime-endpoint: /run/x#1", "/run/x#1", ""},
		{"indented, in a document", "---\n  debug: true\n  runtime-endpoint: /x\n", "/x", ""},
		{"empty", "", "", ""},
		{"without a value", "runtime-endpoint:\n", "", ""},
		{"without a value, and a comment", "runtime-endpoint: # none\n", "", ""},
		{"an empty value", "runtime-endpoint: \"\"", "", ""},
		{"in a comment", "# runtime-endpoint: /x\nimage-endpoint: /y # not runtime-endpoint\n", "", ""},
		{"a flow mapping", "{debug: true, runtime-endpoint: /x}", "", "can't be parsed"},
		{"JSON", `{"runtime-endpoint": "/x"}`, "", "can't be parsed"},
		{"no space after the colon", "runtime-endpoint:/x", "", "can't be parsed"},
		{"an escape", `runtime-endpoint: "\u002fx"`, "", "can't be parsed"},
		{"two words", "runtime-endpoint: /x y", "", "can't be parsed"},
		{"an unclosed quote", `runtime-endpoint: "/x`, "", "can't be parsed"},
		{"another key", "my-runtime-endpoint: /x", "", "can't be parsed"},
		{"the value is on the next line", "runtime-endpoint:\n  unix:///x\ndebug: true\n", "", "continues in"},
		{"... after a comment and an empty line", "debug: true\nruntime-endpoint: # ours\r\n\r\n    # of the node\r\n  \"/x\"\r\n", "", "continues in"},
		{"a value that continues", "runtime-endpoint: /x\n y\n", "", "continues in"},
		{"indented, and without a value", "  runtime-endpoint:\n  debug: true\n", "", ""},
		{"in UTF-16", "r\x00u\x00n\x00t\x00i\x00m\x00e\x00", "", "not UTF-8"},
		{"twice", "runtime-endpoint: /x\nruntime-endpoint: /y\n", "", "twice"},
	} {
		got, err := cri.RuntimeEndpoint(row.text)
		if got != row.want || (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: got %q, %v, want %q, %q", row.reason, got, err, row.want, row.says)
		}
	}
}
