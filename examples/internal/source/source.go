// SPDX-License-Identifier: Apache-2.0

// Package source makes the pod source that the flags name. Each value of --source is KIND or
// KIND:ARG, such as "cri:/run/crio/crio.sock". Without any it is that of a usual node.
package source

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/podfile"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/node"
)

// Env is what the other flags say.
type Env struct {
	// Options are those of the sources but for what Parse sets. Without kubelet, API server and runtime
	// the first file must list the pods of Require.
	node.Options
	// Kubeconfig is the file with the API server's address. Empty is the account of this pod.
	Kubeconfig string
	// Stdin is read by file:-. Nil makes that an error, as in a daemon.
	Stdin io.Reader
}

// Forms are those of all kinds.
const Forms = "file:PATH, kubelet[:SOCKET], kube[:NODE], cri[:ENDPOINT], netns[:nested], cnicache[:DIR]"

// Parse returns the union of the sources in specs, or without any that of a usual node. It does no
// I/O: a missing file is an error of the source.
func Parse(specs []string, env Env) (podsource.Source, error) {
	p := parser{Env: env}
	if env.Kubeconfig != "" {
		p.Config = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", env.Kubeconfig) }
	}
	for i, spec := range specs {
		err := errors.New("it was given twice")
		if !slices.Contains(specs[:i], spec) {
			err = p.add(spec)
		}
		if err != nil {
			return nil, fmt.Errorf("pod source %q: %w", spec, err)
		}
	}
	for i, file := range p.files {
		if env.AllowEmpty {
			file = podsource.AllowEmpty(file)
		}
		for _, pod := range p.Require {
			if i == 0 && len(p.Only) == 0 {
				file = podsource.Require(file, pod)
			}
		}
		p.files[i] = file
	}
	if len(p.Only) > 0 || len(specs) == 0 {
		s, err := node.New(p.Options)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, s)
	}
	return podsource.Union(append(p.files, p.runtimes...)...), nil
}

type parser struct {
	Env
	files, runtimes []podsource.Source // runtimes beside that of node
}

func (p *parser) add(spec string) error {
	name, arg, _ := strings.Cut(spec, ":")
	kind := node.Kind(name)
	again := slices.Contains(p.Only, kind)
	switch {
	case name == "file":
		file, err := podfile.New(arg, p.Stdin)
		p.files = append(p.files, file)
		return err
	case kind == node.CNICache:
		p.CacheDirs = append(p.CacheDirs, cmp.Or(arg, cnicache.DefaultDir))
	case kind == node.CRI && again:
		other, err := node.New(node.Options{Only: []node.Kind{kind}, Runtime: arg, AllowEmpty: p.AllowEmpty, Logger: p.Logger})
		p.runtimes = append(p.runtimes, other)
		return err
	case again:
		return fmt.Errorf("there is one %s on a node, and another was given", name)
	case kind == node.CRI:
		p.Runtime = arg
	case kind == node.Kubelet:
		p.KubeletSocket = arg
	case kind == node.Kube:
		p.Name = cmp.Or(arg, p.Name)
	case kind == node.NetNS && (arg == "" || arg == "nested"):
		p.Nested = arg == "nested"
	case kind == node.NetNS:
		return fmt.Errorf("there is no %q; only \"nested\" may stand there", arg)
	default:
		return fmt.Errorf("there is no kind %q; the kinds are %s", name, Forms)
	}
	if !again {
		p.Only = append(p.Only, kind)
	}
	return nil
}
