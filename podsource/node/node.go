// SPDX-License-Identifier: Apache-2.0

// Package node is the source of pods for a usual node, in one call:
//
//	source, err := node.New(node.Options{Logger: log})
//
// It is the union of all that such a node has:
//
//   - kubelet, or the API server where kubelet does not serve its pods (before Kubernetes 1.37);
//   - the container runtime;
//   - the kernel, with the CNI ADDs in flight and the addresses in network namespaces;
//   - libcni's cache of results, beside the kernel.
//
// What does not exist here is left out. Its part of the answer then lists nothing and declares
// nothing, and its Note says why, after [LeftOut]. The note is in every report, and the Logger
// has it once, with the error.
//
//   - Kubelet and the API server are left out where kubelet has no such socket, and this
//     process is no pod with a token for the API server, and Options.Config is not set.
//   - The runtime is left out where no socket of one has a sandbox, but never on a node of
//     Kubernetes: there it is only away for a moment. It is a node of Kubernetes if
//     /var/lib/kubelet exists, or this process is a pod, or Options.Config is set.
//   - The kernel is left out where this process does not see the processes of the node, such
//     as in a pod without hostPID, and libcni's cache with it. A sandbox whose record the
//     runtime lost while it runs, which only the kernel sees, then loses its address. Name
//     the sources in Options.Only if that must not go unnoticed.
//
// A source that has answered is not left out any more, and what exists and does not answer is
// an error (of a runtime that stops, of a missing right): a pass with a part of the pods would
// release the addresses of the others. It is an error, too, if nothing is left that lists
// containers or pods.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// A Kind is one of the sources of a node, by its name in reports.
type Kind string

// The kinds of sources.
const (
	Kubelet  Kind = "kubelet"  // kubelet's Pods API
	Kube     Kind = "kube"     // the API server
	CRI      Kind = "cri"      // the container runtime
	NetNS    Kind = "netns"    // the kernel
	CNICache Kind = "cnicache" // libcni's cache of results
)

// LeftOut begins the Note in the answer of a source that does not exist on this node.
const LeftOut = "left out: "

// Options configure the source. The zero value is right for most nodes.
type Options struct {
	// Only are the sources to use. Each of them must exist then, but for Kubelet beside Kube: the
	// API server is asked where kubelet does not serve its pods. Nil is all that exist.
	Only []Kind
	// Name is the name of this node in Kubernetes, and Config returns how to reach the API server.
	// Their zero values are those of [kube.FromConfig].
	Name   string
	Config func() (*rest.Config, error)
	// Pods, if set, is asked in place of kubelet and the API server, and is never left out: the
	// agent's informer, as a source of [kube.FromLister].
	Pods podsource.Source
	// KubeletSocket is kubelet's socket. Empty is [kubelet.DefaultSocket].
	KubeletSocket string
	// Runtime is the endpoint of the container runtime. Empty is a search at the usual places (see
	// [cri.New]).
	Runtime string
	// CacheDirs are the directories of libcni's caches. Nil is [cnicache.DefaultDir].
	CacheDirs []string
	// Nested asserts that the node is itself a container, as in kind (see [netns.Options]).
	Nested bool
	// LongestADD is how long a CNI ADD may run: the StartingFor of package gc, where that is set.
	// Zero is [netns.DefaultLongestADD].
	LongestADD time.Duration
	// Require are pods that certainly run here, such as the agent's own. A list of kubelet, the API
	// server or the runtime without one of them is an error (see [podsource.Require]), so a wrong
	// name of the node and the idle runtime of another one are noticed.
	Require []types.NamespacedName
	// AllowEmpty asserts that a list without pods means that there are none (see
	// [podsource.AllowEmpty]). A runtime without a sandbox must then be named in Runtime: a search
	// can't tell it from an idle one.
	AllowEmpty bool
	// Logger logs what is found, and what is left out and why. The zero Logger is silent.
	Logger logr.Logger
}

// New returns the source. It accesses nothing yet. An option that is not valid is an error.
func New(opts Options) (podsource.Source, error) {
	kernel, errKernel := netns.New(netns.Options{Nested: opts.Nested, LongestADD: opts.LongestADD})
	cache, errCache := cnicache.New(cnicache.Options{Dirs: opts.CacheDirs, Living: kernel.Living})
	runtime, errRuntime := cri.New(opts.Runtime, cri.Options{WithStatus: true, Logger: opts.Logger})
	first, errKubelet := kubelet.New(opts.KubeletSocket)
	if err := errors.Join(errKernel, errCache, errRuntime, errKubelet, opts.check()); err != nil {
		return nil, fmt.Errorf("making the sources of this node: %w", err)
	}
	pods := opts.Pods
	switch {
	case pods != nil:
	case !opts.uses(Kube):
		pods = first
	case !opts.uses(Kubelet):
		pods = kube.FromConfig(opts.Config, opts.Name)
	default:
		pods = podsource.Fallback(first, kube.FromConfig(opts.Config, opts.Name))
	}
	return opts.union(kernel, cache, runtime, pods), nil
}

// check returns an error for options that would be ignored.
func (o *Options) check() error {
	for _, kind := range o.Only {
		if !slices.Contains([]Kind{Kubelet, Kube, CRI, NetNS, CNICache}, kind) {
			return fmt.Errorf("option Only has %q, which is no kind of source", kind)
		}
	}
	for _, pod := range o.Require {
		if pod.Name == "" || !o.uses(CRI) && !o.listsPods() {
			return fmt.Errorf("pod %q can't be required: it has no name, or no source of Only lists pods", pod)
		}
	}
	return nil
}

// listsPods reports whether pods are listed by Pods, kubelet or the API server.
func (o *Options) listsPods() bool { return o.Pods != nil || o.uses(Kubelet) || o.uses(Kube) }

func (o *Options) uses(kind Kind) bool { return o.Only == nil || slices.Contains(o.Only, kind) }

// union says when each of the sources is left out. Pods is kubelet or the API server.
func (o *Options) union(kernel, cache, runtime, pods podsource.Source) podsource.Source {
	k := &member{Source: kernel, opts: o, kind: NetNS, rank: podsource.RankADDs, why: "this process does not see the node's processes"}
	c := &member{Source: cache, opts: o, kind: CNICache, rank: podsource.RankCache, why: "it needs netns, which is left out"}
	r := &member{Source: o.list(runtime), opts: o, kind: CRI, rank: podsource.RankRuntime, why: "no container runtime with a sandbox was found"}
	p := &member{Source: o.list(pods), opts: o, kind: Kubelet, rank: podsource.RankPods,
		why: "kubelet does not serve its pods, and this process has no account at the API server"}
	k.absent = func(err error) bool { return errors.Is(err, podsource.ErrNotHere) }
	c.absent = func(error) bool { return !k.answered.Load() }
	r.absent = func(err error) bool { return errors.Is(err, cri.ErrNotFound) && !o.onKubernetes() }
	p.absent = func(err error) bool {
		return k.absent(err) && o.Pods == nil && (r.answered.Load() || k.answered.Load() && len(o.Require) == 0)
	}
	return podsource.Union(slices.DeleteFunc([]podsource.Source{k, c, r, p}, func(s podsource.Source) bool {
		return s != p && !o.uses(s.(*member).kind) || s == p && !o.listsPods()
	})...)
}

// list wraps a source that lists pods by their names.
func (o *Options) list(s podsource.Source) podsource.Source {
	if o.AllowEmpty {
		s = podsource.AllowEmpty(s)
	}
	for _, pod := range o.Require {
		s = podsource.Require(s, pod)
	}
	return s
}

// onKubernetes reports whether this is a node of Kubernetes, which has a container runtime.
func (o *Options) onKubernetes() bool {
	_, err := os.Stat(filepath.Dir(filepath.Dir(cmp.Or(o.KubeletSocket, kubelet.DefaultSocket))))
	return o.Config != nil || os.Getenv("KUBERNETES_SERVICE_HOST") != "" || !errors.Is(err, fs.ErrNotExist)
}

// A member is a source that may be left out while it does not exist.
type member struct {
	podsource.Source
	kind     Kind
	rank     podsource.Rank
	opts     *Options
	absent   func(error) bool // whether an error means that the source does not exist
	why      string           // then
	answered atomic.Bool      // once, so it exists
	once     sync.Once        // logs why
}

// Rank returns that of the source.
func (m *member) Rank() podsource.Rank { return m.rank }

// String names it in errors, if it does not return.
func (m *member) String() string { return string(m.kind) }

// Pods returns the answer of the source, or one that keeps nothing and lets nothing go.
func (m *member) Pods(ctx context.Context) (podsource.Answer, error) {
	a, err := m.Source.Pods(ctx)
	if err == nil {
		m.answered.Store(true)
	} else if m.opts.Only == nil && !m.answered.Load() && m.absent(err) {
		m.once.Do(func() {
			m.opts.Logger.Info("Source is left out", "source", m.kind, "reason", m.why, "error", err.Error())
		})
		return podsource.Answer{Source: string(m.kind), Supplementary: true, Note: LeftOut + m.why}, nil
	}
	return a, err
}
