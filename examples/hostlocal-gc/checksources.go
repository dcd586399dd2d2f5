// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/source"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// foundSources are those that answer on this node.
type foundSources struct {
	union  podsource.Source // nil: nobody answers
	flags  string           // that name them
	failed []unanswering    // those that should answer and do not
	told   []told
}

// told is what became of a source that was looked for.
type told struct {
	Source  string `json:"source"`
	Used    bool   `json:"used"`
	Entries int    `json:"entries,omitempty"`
	Why     string `json:"why,omitempty"` // it is not used
}

// findSources returns those of --source, or else asks those that a node may have and
// takes whoever answers.
func (a *app) findSources(ctx context.Context) (*foundSources, error) {
	if len(a.flags.sources) > 0 {
		s, err := a.source()
		if err != nil {
			return nil, err
		}
		return &foundSources{union: s, flags: sourceFlags(a.flags.sources)}, nil
	}
	var found foundSources
	var specs []string
	for _, spec := range []string{"kubelet", "cri", "netns", "cnicache"} {
		entries, err := a.ask(ctx, spec)
		switch {
		case err == nil:
			specs = append(specs, spec)
			found.told = append(found.told, told{Source: spec, Used: true, Entries: entries})
		case errors.Is(err, podsource.ErrNotHere):
			found.told = append(found.told, told{Source: spec, Why: err.Error()})
		default:
			found.failed = append(found.failed, unanswering{spec, err})
			found.told = append(found.told, told{Source: spec, Why: err.Error()})
		}
	}
	for _, u := range found.failed {
		if errors.Is(u.err, fs.ErrPermission) {
			a.notePermission(u.err)
			break
		}
	}
	if len(specs) == 0 {
		return &found, nil
	}
	found.failed = causes(found.failed, specs, kubeletDir)
	found.flags = sourceFlags(specs)
	a.flags.sources = specs
	var err error
	found.union, err = a.source()
	return &found, err
}

func sourceFlags(specs []string) (flags string) {
	for _, spec := range specs {
		flags += " --source " + quoted(spec)
	}
	return flags
}

// An unanswering source was found and gave no answer.
type unanswering struct {
	spec string
	err  error
}

// kubeletDir is there on a Kubernetes node, whose runtime must answer.
const kubeletDir = "/var/lib/kubelet"

// causes leaves of the sources that gave no answer those without which nothing is judged.
// The kernel and libcni's cache may be out of reach where others list the containers, and
// where no kubelet is nobody else need use the runtime's CRI, as on a node of nerdctl's.
func causes(failed []unanswering, used []string, kubeletDir string) []unanswering {
	lists := slices.Contains(used, "kubelet") || slices.Contains(used, "cri")
	kernelAndCache := slices.Contains(used, "netns") && slices.Contains(used, "cnicache")
	_, noKubelet := os.Stat(kubeletDir)
	return slices.DeleteFunc(failed, func(u unanswering) bool {
		if u.spec == "cri" {
			return kernelAndCache && errors.Is(noKubelet, fs.ErrNotExist)
		}
		return u.spec != "kubelet" && lists
	})
}

// ask asks one source, and returns how many entries its answer has.
func (a *app) ask(ctx context.Context, spec string) (entries int, err error) {
	s, err := source.Parse([]string{spec}, source.Env{Logger: a.logger()})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := s.Pods(ctx)
	for _, m := range answer.Members() {
		entries += len(m.Pods)
	}
	return entries, err
}
