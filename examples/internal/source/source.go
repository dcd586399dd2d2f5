// SPDX-License-Identifier: Apache-2.0

// Package source makes pod sources from the values of --source: KIND or KIND:ARG, such as
// "file:/run/pods.json". Several sources are united, so that a pod is live if any of them lists it.
//
// A new kind is one more row in kinds, and a file of its own.
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
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// Env is the environment of sources besides their arguments.
type Env struct {
	// Node is this node's name in Kubernetes, also in a list that kubectl printed. Kubeconfig is
	// the file with the API server's address. The defaults are NODE_NAME in the environment or else
	// the host's name, and the in-cluster configuration.
	Node, Kubeconfig string
	// Stdin is read by file:-. Nil makes that an error, as in a daemon.
	Stdin io.Reader
	// Logger logs what sources find out by themselves, such as sockets. The zero Logger is silent.
	Logger logr.Logger
	// LongestADD is the longest duration of a CNI ADD: the StartingFor of the passes. Zero means
	// the default of package netns.
	LongestADD time.Duration
	// AllowEmpty is for a node that may have no pods (podsource.AllowEmpty).
	AllowEmpty bool
	// Require are pods that the first source of pods must list, one that is neither netns nor
	// cnicache (podsource.Require).
	Require []types.NamespacedName

	kernel    func() (*netns.Source, error) // one source of this node's kernel for all users
	cacheDirs []string                      // directories of all cnicache sources, which are merged
}

// LongestADD returns the longest duration of an ADD on a node with kubelet's runtimeRequestTimeout,
// or with its default if that is zero: the default of StartingFor (R4). The passes check the
// limits.
func LongestADD(requestTimeout time.Duration) time.Duration {
	const margin = gc.DefaultStartingFor - 2*gc.DefaultRuntimeRequestTimeout
	return 2*max(cmp.Or(requestTimeout, gc.DefaultRuntimeRequestTimeout), 0) + margin
}

// A kind is one way to learn which pods are live.
type kind struct {
	name string
	arg  string // name of the argument in help texts; "" for none, [NAME] if optional
	help string
	open func(arg string, env *Env) (podsource.Source, error)
}

// kinds returns all kinds, in the order of help texts.
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

// Parse returns the union of the sources in specs. It needs at least one. It does no I/O: a missing
// file is an error of the source.
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
		if env.AllowEmpty {
			s = podsource.AllowEmpty(s)
		}
		if name, _, _ := strings.Cut(spec, ":"); name != "netns" && name != "cnicache" {
			for _, pod := range env.Require {
				s = podsource.Require(s, pod)
			}
			env.Require = nil
		}
		all = append(all, s)
	}
	if len(env.Require) > 0 {
		return nil, fmt.Errorf("no pod source lists pods by their names, so %s can't be required", env.Require[0])
	}
	if len(all) == 1 {
		return all[0], nil // without the prefix that Union adds to errors
	}
	return podsource.Union(all...), nil
}

// parse parses one source, or several alternatives separated by commas. Each is asked only if those
// before it do not exist (podsource.Fallback).
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

// alternatives splits a spec at each comma that precedes a kind. Other commas belong to an
// argument.
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

// Forms returns the form of each kind, such as "file:PATH" and "cri[:ENDPOINT]".
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

// A Kind describes a source for help texts.
type Kind struct{ Form, Help string }

// Kinds returns all kinds.
func Kinds() (all []Kind) {
	for i, form := range Forms() {
		all = append(all, Kind{form, kinds()[i].help})
	}
	return all
}

// Completions returns the beginning of each kind: with a colon before an argument, without one if
// the argument is optional.
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
