// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// A fake is a source that lists one pod, or fails.
type fake struct {
	name Kind
	err  error
}

func (f *fake) Pods(context.Context) (podsource.Answer, error) {
	pod := podsource.Pod{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "agent"}, ContainerIDs: []string{"c"}}
	return podsource.Answer{Source: string(f.name), Pods: []podsource.Pod{pod}, Networks: []string{podsource.EveryNetwork}}, f.err
}

func notHere(what string) error { return fmt.Errorf("%s: %w", what, podsource.ErrNotHere) }

// TestLeftOut asks the four sources of a node, some of which fail, several times in one process.
func TestLeftOut(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	away := errors.New("away")
	noKernel, noPods, noRuntime := notHere("no hostPID"), notHere("no socket, no account"), cri.ErrNotFound
	agent := []types.NamespacedName{{Namespace: "ns", Name: "agent"}}
	other := []types.NamespacedName{{Namespace: "ns", Name: "other"}}
	type call struct { // kernel, cache, runtime and pods as they answer, and what comes of it
		kernel, cache, runtime, pods error
		want                         string
	}
	for _, row := range []struct {
		reason     string
		opts       Options
		kubernetes bool
		calls      []call
	}{
		{"all exist", Options{}, true, []call{{want: "netns cnicache cri kubelet"}}},
		{"no hostPID: the cache goes with the kernel", Options{}, true, []call{{noKernel, away, nil, nil, "cri kubelet"}}},
		{"the kernel exists and fails: a right is missing", Options{}, true, []call{{away, nil, nil, nil, "error: away"}}},
		{"the cache beside the kernel fails", Options{}, true, []call{{nil, away, nil, nil, "error: away"}}},
		{"no Kubernetes", Options{}, false, []call{{nil, nil, noRuntime, noPods, "netns cnicache"}}},
		{"Kubernetes without an account or kubelet's API", Options{}, true, []call{{nil, nil, nil, noPods, "netns cnicache cri"}}},
		{"the same without the kernel", Options{}, true, []call{{noKernel, away, nil, noPods, "cri"}}},
		{"the runtime is away when the agent starts", Options{}, true, []call{{nil, nil, noRuntime, nil, "error: no container runtime"}}},
		{"by a configuration of the API server it is Kubernetes", Options{Config: rest.InClusterConfig}, false,
			[]call{{nil, nil, noRuntime, nil, "error: no container runtime"}}},
		{"the runtime fails", Options{}, false, []call{{nil, nil, away, nil, "error: away"}}},
		{"nothing is left that lists", Options{}, false, []call{{noKernel, away, noRuntime, noPods, "error: no socket"}}},
		{"kubelet exists and fails", Options{}, true, []call{{nil, nil, nil, away, "error: away"}}},
		{"what has answered exists: the kernel", Options{}, true, []call{{want: "netns cnicache cri kubelet"}, {noKernel, nil, nil, nil, "error: no hostPID"}}},
		{"the cache, after the kernel", Options{}, true, []call{{want: "netns cnicache cri kubelet"}, {nil, away, nil, nil, "error: away"}}},
		{"the runtime", Options{}, false, []call{{want: "netns cnicache cri kubelet"}, {nil, nil, noRuntime, nil, "error: no container runtime"}}},
		{"kubelet", Options{}, true, []call{{want: "netns cnicache cri kubelet"}, {nil, nil, nil, noPods, "error: no socket"}}},
		{"what is left out comes later", Options{}, true, []call{{noKernel, away, nil, noPods, "cri"}, {want: "netns cnicache cri kubelet"}}},
		{"what was named must exist", Options{Only: []Kind{NetNS, CRI, Kube}}, false, []call{{want: "netns cri kubelet"}, {noKernel, nil, nil, nil, "error: no hostPID"}}},
		{"the runtime, too", Options{Only: []Kind{NetNS, CRI}}, false, []call{{nil, nil, noRuntime, nil, "error: no container runtime"}}},
		{"kubelet, too", Options{Only: []Kind{NetNS, CRI, Kubelet}}, false, []call{{nil, nil, nil, noPods, "error: no socket"}}},
		{"a pod that is required is there", Options{Require: agent}, true, []call{{noKernel, away, nil, nil, "cri kubelet"}}},
		{"the runtime has it alone", Options{Require: agent}, true, []call{{nil, nil, nil, noPods, "netns cnicache cri"}}},
		{"nobody could have it", Options{Require: agent}, false, []call{{nil, nil, noRuntime, noPods, "error: no socket"}}},
		{"an idle runtime does not have it", Options{Require: other, Only: []Kind{CRI}}, true, []call{{want: "error: ns/other"}}},
		{"the list of another node does not", Options{Require: other, Only: []Kind{Kube}}, true, []call{{want: "error: ns/other"}}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			var log strings.Builder
			root := filepath.Join(t.TempDir(), "kubelet")
			if row.kubernetes {
				if err := os.Mkdir(root, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			row.opts.KubeletSocket = filepath.Join(root, "pods-api", "x.sock")
			row.opts.Logger = funcr.New(func(_, text string) { fmt.Fprintln(&log, text) }, funcr.Options{})
			kernel, cache, runtime, pods := fake{name: NetNS}, fake{name: CNICache}, fake{name: CRI}, fake{name: Kubelet}
			source := row.opts.union(&kernel, &cache, &runtime, &pods)
			for _, c := range row.calls {
				kernel.err, cache.err, runtime.err, pods.err = c.kernel, c.cache, c.runtime, c.pods
				for range 2 { // the reason is logged once
					if got := used(t, source, log.String); got != c.want && (!strings.HasPrefix(c.want, "error") || !strings.Contains(got, c.want[7:])) {
						t.Errorf("got %s, want %s", got, c.want)
					}
				}
			}
			for line := range strings.Lines(log.String()) {
				if strings.Count(log.String(), line) > 1 {
					t.Errorf("logged twice: %s", line)
				}
			}
		})
	}
}

// used asks a source, and returns which of its members listed pods, or the error.
func used(t *testing.T, s podsource.Source, log func() string) string {
	a, err := s.Pods(t.Context())
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, m := range a.Parts {
		reason, left := strings.CutPrefix(m.Note, LeftOut)
		if !left {
			all = append(all, m.Source)
		} else if !m.Supplementary || len(m.Networks)+len(m.Pods) > 0 || reason == "" || !strings.Contains(log(), m.Source) {
			t.Errorf("a source is left out without a reason, or not wholly, or nothing is logged: %+v", m)
		}
	}
	return strings.Join(all, " ")
}

// Kubelet and the API server are one source, unless one of them is named alone.
func TestPods(t *testing.T) {
	config := func() (*rest.Config, error) { return nil, errors.New("no configuration") }
	for _, row := range []struct {
		reason string
		only   []Kind
		pods   podsource.Source
		want   string // part of the error
	}{
		{"the API server", []Kind{Kube}, nil, "kube: asking how to reach the API server: no configuration"},
		{"where kubelet has no socket", []Kind{Kubelet, Kube}, nil, "no configuration (asked because: asking kubelet"},
		{"kubelet alone is not replaced", []Kind{Kubelet}, nil, "x.sock"},
		{"the caller's in their place", []Kind{Kubelet, Kube}, &fake{err: errors.New("not in sync")}, "not in sync"},
		{"and without them", []Kind{CRI}, &fake{err: errors.New("not in sync")}, "x.sock"},
	} {
		s, err := New(Options{Only: row.only, Config: config, Pods: row.pods, KubeletSocket: t.TempDir() + "/x.sock", Runtime: "/no/such/x.sock"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got error %v, want one that says %q", row.reason, err, row.want)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, row := range []struct {
		reason string
		opts   Options
		want   string
	}{
		{"the zero value", Options{}, ""},
		{"a time that can't be", Options{LongestADD: -1}, "LongestADD is -1ns"},
		{"a cache without a root", Options{CacheDirs: []string{"results"}}, `"results" is not an absolute path`},
		{"a runtime on the network", Options{Runtime: "tcp://10.0.0.1:1"}, `"tcp://10.0.0.1:1" is not the path of a socket`},
		{"a socket without a root", Options{KubeletSocket: "x.sock"}, `the socket "x.sock" is not an absolute path`},
		{"nobody lists it", Options{Only: []Kind{NetNS}, Require: []types.NamespacedName{{Name: "agent"}}}, `"/agent" can't be required`},
		{"its name is not set", Options{Require: []types.NamespacedName{{Namespace: "ns"}}}, `"ns/" can't be required`},
		{"a kind that there is not", Options{Only: []Kind{"kernel", CRI}}, `Only has "kernel"`},
	} {
		if _, err := New(row.opts); (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got error %v, want %q", row.reason, err, row.want)
		}
	}
}

// A source that does not return is named.
func TestHangs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hangs := podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		cancel()
		select {}
	})
	opts := Options{Only: []Kind{CRI, Kubelet}}
	a, err := opts.union(nil, nil, hangs, &fake{name: Kubelet}).Pods(ctx)
	if err == nil || err.Error() != "pod source cri: context canceled" || len(a.Parts) != 1 || a.Parts[0].Source != "cri" {
		t.Errorf("got %v, %v", a, err)
	}
}

// An empty list of the runtime or of pods counts if the caller says so.
func TestAllowEmpty(t *testing.T) {
	empty := podsource.Static{}
	for _, allow := range []bool{false, true} {
		a, err := (&Options{AllowEmpty: allow}).union(empty, empty, empty, empty).Pods(t.Context())
		if err != nil || a.Parts[0].Authoritative || a.Parts[2].Authoritative != allow || a.Parts[3].Authoritative != allow {
			t.Errorf("AllowEmpty %t: %+v, %v", allow, a, err)
		}
	}
}
