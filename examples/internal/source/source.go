// SPDX-License-Identifier: Apache-2.0

// Package source makes pod sources of what a user writes after --source:
// KIND or KIND:ARG, as in "file:/run/pods.json". Several are united, so that a
// pod is live where any of them says so.
//
// A further kind is one more row in kinds, and a file of its own.
package source

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// Env is what a kind may need beside its argument.
type Env struct {
	// Node is the name of this node in Kubernetes, also in a list that kubectl
	// printed, and Kubeconfig the file that says how to reach the API server. Empty
	// they are NODE_NAME of the environment or the host's name, and what a pod in
	// the cluster has.
	Node, Kubeconfig string
	// Stdin is what file:- reads. Nil refuses it: a daemon has none.
	Stdin io.Reader
	// Logger is told what a source finds out by itself. The zero Logger is
	// silent.
	Logger logr.Logger
	// LongestADD is how long a CNI ADD takes at most: the StartingFor of the passes.
	// Zero is the default of package netns.
	LongestADD time.Duration

	kernel    func() (*netns.Source, error) // that of this node: one, whoever uses it
	cacheDirs []string                      // of all cnicache sources, which are one
}

// LongestADD is how long an ADD takes at most on a node with kubelet's
// runtimeRequestTimeout, zero being its default: StartingFor where nobody sets it
// (R4). What is out of bounds is left to the passes, which say so.
func LongestADD(requestTimeout time.Duration) time.Duration {
	const margin = gc.DefaultStartingFor - 2*gc.DefaultRuntimeRequestTimeout
	return 2*max(cmp.Or(requestTimeout, gc.DefaultRuntimeRequestTimeout), 0) + margin
}

// A kind is one way to learn which pods are live.
type kind struct {
	name string
	arg  string // how the argument is called in help texts; "" for none, [NAME] for one that may be left out
	help string
	open func(arg string, env *Env) (podsource.Source, error)
}

// kinds returns all kinds, in the order in which help texts list them.
func kinds() []kind {
	return []kind{
		{"file", "PATH", "a JSON array of pods, or what kubectl or crictl printed of them; - is standard input", openFile},
		{"kubelet", "[SOCKET]", "kubelet's Pods API, from Kubernetes 1.37 on", openKubelet},
		{"kube", "[NODE]", "the API server; without a node name $NODE_NAME, or else the host's name", openKube},
		{"cri", "[ENDPOINT]", "the container runtime, as unix:///run/containerd/containerd.sock; without an endpoint those that are found", openCRI},
		{"netns", "[nested]", "the kernel: the CNI ADDs under way and the addresses in all network namespaces of this node; nested where the node is itself a container", openNetNS},
		{"cnicache", "[DIR]", "libcni's cache of results, beside netns; several directories are one cache", openCNICache},
	}
}

// Parse returns the union of the sources that specs ask for, of which there must
// be one at least. It touches nothing: whether a file exists is seen when the
// source is asked.
func Parse(specs []string, env Env) (podsource.Source, error) {
	if len(specs) == 0 {
		return nil, errors.New("no pod source was given")
	}
	env.kernel = sync.OnceValues(func() (*netns.Source, error) {
		nested := slices.ContainsFunc(specs, func(spec string) bool { return slices.Contains(alternatives(spec), "netns:nested") })
		return netns.New(netns.Options{Nested: nested, LongestADD: env.LongestADD})
	})
	specs, env.cacheDirs = mergeCaches(specs)
	var all []podsource.Source
	seen := make(map[string]bool)
	for _, spec := range specs {
		if seen[spec] {
			return nil, fmt.Errorf("pod source %q was given twice", spec)
		}
		seen[spec] = true
		s, err := parse(spec, &env)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	if len(all) == 1 {
		return all[0], nil // its errors need no "pod source file" before them
	}
	return podsource.Union(all...), nil
}

// parse reads one source, or several with commas between them, of which each is
// asked only where those before it do not exist (podsource.Fallback).
func parse(spec string, env *Env) (podsource.Source, error) {
	all := alternatives(spec)
	isCache := func(one string) bool { name, _, _ := strings.Cut(one, ":"); return name == "cnicache" }
	if len(all) > 1 && slices.ContainsFunc(all, isCache) {
		return nil, fmt.Errorf("pod source %q: cnicache is asked beside others, and not in their place; give it a --source of its own", spec)
	}
	s, err := open(all[len(all)-1], env)
	for i := len(all) - 2; i >= 0 && err == nil; i-- {
		var first podsource.Source
		first, err = open(all[i], env)
		s = podsource.Fallback(first, s)
	}
	return s, err
}

// alternatives cuts at each comma behind which a kind follows. Others are part
// of an argument.
func alternatives(spec string) []string {
	var all []string
	for i, part := range strings.Split(spec, ",") {
		name, _, _ := strings.Cut(part, ":")
		known := slices.ContainsFunc(kinds(), func(k kind) bool { return k.name == name })
		if i == 0 || known {
			all = append(all, part)
		} else {
			all[len(all)-1] += "," + part
		}
	}
	return all
}

func open(spec string, env *Env) (podsource.Source, error) {
	name, arg, _ := strings.Cut(spec, ":")
	for _, k := range kinds() {
		if k.name != name {
			continue
		}
		s, err := k.open(arg, env)
		if err != nil {
			return nil, fmt.Errorf("pod source %q: %w", spec, err)
		}
		return s, nil
	}
	return nil, fmt.Errorf("pod source %q: there is no kind %q; the kinds are %s", spec, name, strings.Join(Forms(), ", "))
}

// Forms returns the form of each kind, as in "file:PATH" and "cri[:ENDPOINT]".
func Forms() []string {
	var forms []string
	for _, k := range kinds() {
		name, optional := strings.CutPrefix(k.arg, "[")
		switch {
		case k.arg == "":
			forms = append(forms, k.name)
		case optional:
			forms = append(forms, k.name+"[:"+name)
		default:
			forms = append(forms, k.name+":"+k.arg)
		}
	}
	return forms
}

// A Kind is a source that a spec can name, for help texts.
type Kind struct{ Form, Help string }

// Kinds returns all of them.
func Kinds() (all []Kind) {
	for i, form := range Forms() {
		all = append(all, Kind{form, kinds()[i].help})
	}
	return all
}

// Completions returns how each kind may begin: with a colon where an argument
// follows, without one where it may be left out.
func Completions() []string {
	var all []string
	for _, k := range kinds() {
		optional := strings.HasPrefix(k.arg, "[")
		if k.arg == "" || optional {
			all = append(all, k.name)
		}
		if k.arg != "" {
			all = append(all, k.name+":")
		}
	}
	return all
}
