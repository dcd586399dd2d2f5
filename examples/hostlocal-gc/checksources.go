// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/source"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// foundSources are the sources that answer on this node.
type foundSources struct {
	union   podsource.Source // nil if no source answers
	flags   string           // --source flags for them
	failed  []failedSource   // sources that should answer and do not
	results []sourceResult
}

// sourceResult is the result of trying a source.
type sourceResult struct {
	Source  string `json:"source"`
	Used    bool   `json:"used"`
	Entries int    `json:"entries,omitempty"`
	Why     string `json:"why,omitempty"` // why it is not used
}

// findSources returns the sources of --source, or else tries the sources that a node may have and
// returns those that answer.
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
			found.results = append(found.results, sourceResult{Source: spec, Used: true, Entries: entries})
		case errors.Is(err, podsource.ErrNotHere):
			found.results = append(found.results, sourceResult{Source: spec, Why: err.Error()})
		default:
			found.failed = append(found.failed, failedSource{spec, err})
			found.results = append(found.results, sourceResult{Source: spec, Why: err.Error()})
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

// A failedSource exists on the node and did not answer.
type failedSource struct {
	spec string
	err  error
}

// kubeletDir exists on Kubernetes nodes, whose runtime must answer.
const kubeletDir = "/var/lib/kubelet"

// causes returns the failed sources without which nothing can be judged. The kernel and libcni's
// cache are optional where other sources list the containers. Without a kubelet the runtime's CRI
// is optional, as on a node of nerdctl.
func causes(failed []failedSource, used []string, kubeletDir string) []failedSource {
	lists := slices.Contains(used, "kubelet") || slices.Contains(used, "cri")
	kernelAndCache := slices.Contains(used, "netns") && slices.Contains(used, "cnicache")
	_, noKubelet := os.Stat(kubeletDir)
	return slices.DeleteFunc(failed, func(u failedSource) bool {
		if u.spec == "cri" {
			return kernelAndCache && errors.Is(noKubelet, fs.ErrNotExist)
		}
		return u.spec != "kubelet" && lists
	})
}

// ask asks one source and returns the number of entries in its answer.
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
		err = cmp.Or(m.Err, err) // a union's own error does not say that it is not here
	}
	return entries, err
}
