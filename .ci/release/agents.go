// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A kubernetes is a version of client-go, k8s.io/api and k8s.io/apimachinery, with the go
// line that they need.
type kubernetes struct {
	version, goLine string
	agent           bool // whether an agent is built with it
}

// versions has the lowest minor version that is required, the newest, and some between, among
// them the last before and the first with fieldsAsString. Not all, since where nothing is compiled
// yet an agent costs a minute or two.
var versions = []kubernetes{
	{"v0.28.0", "1.24.2", false},
	{"v0.31.1", "1.24.2", true},
	{"v0.34.1", "1.24.2", true},
	{"v0.35.0", "1.25.0", false},
	{"v0.36.0", "1.26.0", false},
	{"v0.37.0", "1.26.0", true},
}

// fieldsAsString changes the type of managed fields in apimachinery v0.36 and later. Code
// that uses them must compile with both types.
const fieldsAsString = "-tags=fieldsv1string"

// types builds the packages of m, which need only the types of the API, with that version, as
// an agent with another client may require it.
func (h *rehearsal) types(ctx context.Context, dir string, k kubernetes, m *mod) (string, error) {
	requires := []string{"k8s.io/api " + k.version, apimachinery + " " + k.version, h.require(m)}
	if err := write(dir, k.goLine, requires, map[string]string{"outside.go": "package outside\n\n" + imports([]string{m.path})}); err != nil {
		return "", err
	}
	if err := h.buildAndVet(ctx, dir); err != nil {
		return "", err
	}
	if _, err := h.goCommand(ctx, dir, "build", fieldsAsString, "./..."); err != nil {
		return "", err
	}
	got, err := h.goCommand(ctx, dir, "list", "-m", "-f", "{{.Version}}", apimachinery)
	if err == nil && got != k.version {
		err = fmt.Errorf("it was built with %s %s, want %s", apimachinery, got, k.version)
	}
	return "", err
}

// agent is an agent before it embeds the library. It does not use the whole clientset, which
// takes a minute to compile and needs no other module.
const agent = `package agent

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

func run(ctx context.Context, indexer cache.Indexer) (listers.PodLister, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	client, err := corev1.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	_, err = client.Pods("").List(ctx, metav1.ListOptions{})
	return listers.NewPodLister(indexer), err
}

var _ = run
`

// agent builds an agent with that version of client-go, and again with all library modules.
// It fails if the go line changes, or the version of a module that the agent used before,
// unless the plugins and gRPC alone change it, too.
func (h *rehearsal) agent(ctx context.Context, dir, version, goLine string, libraries []*mod) (string, error) {
	requires := []string{"k8s.io/api " + version, apimachinery + " " + version, clientGo + " " + version}
	if err := write(dir, goLine, requires, map[string]string{"agent.go": agent}); err != nil {
		return "", err
	}
	if err := h.tidyAndBuild(ctx, dir); err != nil {
		return "", err
	}
	before, err := h.used(ctx, dir)
	if err != nil {
		return "", err
	}
	root := h.root1()
	packages := []string{root.path + "/gc", root.path + "/hostlocal", root.path + "/podsource"}
	for _, m := range libraries {
		requires = append(requires, h.require(m))
		if m != root {
			packages = append(packages, m.path)
		}
	}
	err = write(dir, goLine, requires, map[string]string{"collect.go": "package agent\n\n" + imports(packages)})
	if err != nil {
		return "", err
	}
	if err := h.tidyAndBuild(ctx, dir); err != nil {
		return "", err
	}
	if line, err := h.goCommand(ctx, dir, "list", "-m", "-f", "{{.GoVersion}}"); err != nil || line != goLine {
		return "", errors.Join(err, fmt.Errorf("the go line moves from %s to %s", goLine, line))
	}
	after, err := h.used(ctx, dir)
	if err != nil {
		return "", err
	}
	allowed, err := h.withPlugins(ctx, filepath.Join(dir, "plugins"), goLine, requires[:3])
	if err != nil {
		return "", err
	}
	return moved(before, after, allowed)
}

// moved compares the versions of modules. It fails if one has changed, and not to that in
// allowed.
func moved(before, after, allowed map[string]string) (string, error) {
	var notes []string
	var errs []error
	for module, version := range before {
		switch now := after[module]; {
		case now == version || now == "":
		case allowed[module] == now:
			notes = append(notes, fmt.Sprintf("%s %s -> %s", path.Base(module), version, now))
		default:
			errs = append(errs, fmt.Errorf("%s moves from %s to %s", module, version, now))
		}
	}
	slices.Sort(notes)
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(notes) == 0 {
		return "nothing moves", errors.Join(errs...)
	}
	return "the plugins and gRPC move " + strings.Join(notes, ", "), errors.Join(errs...)
}

// used returns the versions of all modules from which the module in dir builds packages.
func (h *rehearsal) used(ctx context.Context, dir string) (map[string]string, error) {
	out, err := h.goCommand(ctx, dir, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", ".")
	if err != nil {
		return nil, err
	}
	versions := make(map[string]string)
	for line := range strings.Lines(out) {
		if module, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			versions[module] = version
		}
	}
	return versions, nil
}

// withPlugins returns the versions of an agent with the plugins and gRPC at the versions that
// are required here, and without this repository.
func (h *rehearsal) withPlugins(ctx context.Context, dir, goLine string, requires []string) (map[string]string, error) {
	requires = slices.Clone(requires)
	for _, m := range h.modules {
		if m.dir != "." && m.dir != "podsource/kubelet" {
			continue
		}
		for _, req := range m.file.Require {
			if path := req.Mod.Path; m.dir == "." && path == plugins || m.dir != "." && path == grpc {
				requires = append(requires, path+" "+req.Mod.Version)
			}
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	files := map[string]string{"agent.go": agent, "plugins.go": "package agent\n\n" + imports([]string{lock, grpc})}
	if err := write(dir, goLine, requires, files); err != nil {
		return nil, err
	}
	if err := h.tidyAndBuild(ctx, dir); err != nil {
		return nil, err
	}
	return h.used(ctx, dir)
}
