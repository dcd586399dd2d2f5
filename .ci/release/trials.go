// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"go/version"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// helloWorld is the number of packages that a program with gc, hostlocal and podsource
	// may import.
	helloWorld = 110
	// command is the directory of the program that users install.
	command = "examples/hostlocal-gc"
	plugins = "github.com/containernetworking/plugins"
	lock    = plugins + "/plugins/ipam/host-local/backend/disk"
	grpc    = "google.golang.org/grpc"

	clientGo     = "k8s.io/client-go"
	apimachinery = "k8s.io/apimachinery"
	// kubepod needs only the types of the Kubernetes API.
	kubepod = "podsource/kube/kubepod"
)

func (h *rehearsal) trials(ctx context.Context) ([]trial, error) {
	var libraries []*mod
	packages := make(map[*mod][]string)
	for _, m := range h.modules {
		if !m.released {
			continue
		}
		var err error
		if packages[m], err = h.packages(m); err != nil {
			return nil, err
		}
		if len(packages[m]) > 0 {
			libraries = append(libraries, m)
		}
	}
	var all []trial
	for _, m := range libraries {
		all = append(all, trial{"alone: " + m.dir, func(ctx context.Context, dir string) (string, error) {
			if err := checkFloors(m); err != nil {
				return "", err
			}
			if err := h.importing(ctx, dir, []*mod{m}, packages[m]); err != nil {
				return "", err
			}
			return h.without(ctx, dir, m)
		}})
	}
	for i, a := range libraries {
		for _, b := range libraries[i+1:] {
			all = append(all, trial{"pair: " + a.dir + " and " + b.dir, func(ctx context.Context, dir string) (string, error) {
				return "", h.importing(ctx, dir, []*mod{a, b}, slices.Concat(packages[a], packages[b]))
			}})
		}
	}
	all = append(all, trial{"all of them", func(ctx context.Context, dir string) (string, error) {
		var everything []string
		for _, m := range libraries {
			everything = append(everything, packages[m]...)
		}
		return "", h.importing(ctx, dir, libraries, everything)
	}})
	for _, k := range versions {
		for _, m := range libraries {
			if m.dir == kubepod {
				all = append(all, trial{"types: apimachinery " + k.version, func(ctx context.Context, dir string) (string, error) {
					return h.types(ctx, dir, k, m)
				}})
			}
		}
		if k.agent {
			all = append(all, trial{"agent: client-go " + k.version, func(ctx context.Context, dir string) (string, error) {
				return h.agent(ctx, dir, k.version, k.goLine, libraries)
			}})
		}
	}
	snippets, err := h.snippets()
	if err != nil {
		return nil, err
	}
	return append(append(all, snippets...),
		trial{"release: up to the tags", h.release},
		trial{"hello world", h.hello},
		trial{"go install " + command, h.install}), nil
}

// packages returns the packages of m that other modules may import.
func (h *rehearsal) packages(m *mod) ([]string, error) {
	names, err := h.files(m.dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range names {
		dir := path.Dir(name)
		rel := strings.TrimPrefix(strings.TrimPrefix(dir, m.dir), "/")
		if m.dir == "." {
			rel = dir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || h.owner(name) != m ||
			slices.ContainsFunc(strings.Split(rel, "/"), func(s string) bool {
				return s == "internal" || s == "testdata" || s != "." && strings.HasPrefix(s, ".")
			}) {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(h.root, name), nil, parser.PackageClauseOnly)
		if err != nil {
			return nil, err
		}
		if p := path.Join(m.path, rel); parsed.Name.Name != "main" && !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	return found, nil
}

// owner returns the module of a file.
func (h *rehearsal) owner(name string) *mod {
	var found *mod
	for _, m := range h.modules {
		if m.dir == "." && found == nil || strings.HasPrefix(name, m.dir+"/") && (found == nil || found.dir == "." || len(m.dir) > len(found.dir)) {
			found = m
		}
	}
	return found
}

// write writes the files of a module outside of this repository.
func write(dir, goLine string, requires []string, files map[string]string) error {
	text := "module example.com/outside\n\ngo " + goLine + "\n"
	for _, r := range requires {
		text += "\nrequire " + r + "\n"
	}
	errs := []error{os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o644)}
	for name, content := range files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	return errors.Join(errs...)
}

// goLine returns the highest go line of the modules.
func goLine(modules []*mod) string {
	highest := ""
	for _, m := range modules {
		if highest == "" || version.Compare("go"+m.file.Go.Version, "go"+highest) > 0 {
			highest = m.file.Go.Version
		}
	}
	return highest
}

// require returns the requirement of m at the fake version.
func (h *rehearsal) require(m *mod) string { return m.path + " " + h.version }

// buildAndVet builds and vets the module in dir, as its maintainer would.
func (h *rehearsal) buildAndVet(ctx context.Context, dir string) error {
	if _, err := h.goCommand(ctx, dir, "build", "./..."); err != nil {
		return err
	}
	_, err := h.goCommand(ctx, dir, "vet", "./...")
	return err
}

// tidyAndBuild runs go mod tidy before buildAndVet. That considers the imports for all systems,
// and so adds all requirements of the plugins.
func (h *rehearsal) tidyAndBuild(ctx context.Context, dir string) error {
	if _, err := h.goCommand(ctx, dir, "mod", "tidy"); err != nil {
		return err
	}
	return h.buildAndVet(ctx, dir)
}

// importing builds a module that imports the packages.
func (h *rehearsal) importing(ctx context.Context, dir string, modules []*mod, packages []string) error {
	var requires []string
	for _, m := range modules {
		requires = append(requires, h.require(m))
	}
	if err := write(dir, goLine(modules), requires, map[string]string{"outside.go": "package outside\n\n" + imports(packages)}); err != nil {
		return err
	}
	return h.buildAndVet(ctx, dir)
}

// without returns the number of modules that the one in dir requires. Only with podsource/kube
// may client-go be one of them.
func (h *rehearsal) without(ctx context.Context, dir string, m *mod) (string, error) {
	out, err := h.goCommand(ctx, dir, "list", "-m", "-f", "{{.Path}}", "all")
	if err != nil {
		return "", err
	}
	all := strings.Fields(out)
	if m.dir != "podsource/kube" && slices.Contains(all, clientGo) {
		err = fmt.Errorf("%s requires %s, directly or not", m.path, clientGo)
	}
	return fmt.Sprintf("%d modules", len(all)-1), err
}

func imports(packages []string) string {
	text := "import (\n"
	for _, p := range packages {
		text += fmt.Sprintf("\t_ %q\n", p)
	}
	return text + ")\n"
}

// hello counts the packages that the smallest program imports.
func (h *rehearsal) hello(ctx context.Context, dir string) (string, error) {
	root := h.root1()
	err := write(dir, root.file.Go.Version, []string{h.require(root)}, map[string]string{"main.go": "package main\n\n" +
		imports([]string{root.path + "/gc", root.path + "/hostlocal", root.path + "/podsource"}) + "\nfunc main() { println(\"hello, world\") }\n"})
	if err != nil {
		return "", err
	}
	if err := h.buildAndVet(ctx, dir); err != nil {
		return "", err
	}
	out, err := h.goCommand(ctx, dir, "list", "-deps", ".")
	if err != nil {
		return "", err
	}
	n := len(strings.Fields(out)) - 1 // itself
	note := fmt.Sprintf("imports %d packages, may import %d", n, helloWorld)
	if n > helloWorld {
		return note, errors.New(note)
	}
	return note, nil
}

// install installs the command as a user does, outside of any module, and runs it.
func (h *rehearsal) install(ctx context.Context, dir string) (string, error) {
	env := append(slices.Clone(h.env), "GOFLAGS=", "GOBIN="+dir)
	if _, err := output(ctx, dir, env, "go", "install", h.root1().path+"/"+command+"@"+h.version); err != nil {
		return "", err
	}
	_, err := output(ctx, dir, env, filepath.Join(dir, path.Base(command)), "--help")
	return "", err
}

// release runs the steps of a release in a copy of the repository, up to the tags, and begins
// the next version. With a removed method, apidiff must refuse a patch version and accept a minor
// version.
func (h *rehearsal) release(ctx context.Context, dir string) (string, error) {
	names, err := h.files()
	if err != nil {
		return "", err
	}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(h.root, name))
		if err != nil {
			return "", err
		}
		target := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, content, 0o644)); err != nil {
			return "", err
		}
	}
	git := func(args ...string) error {
		_, err := output(ctx, dir, os.Environ(), "git", append([]string{"-c", "user.name=rehearsal", "-c", "user.email=rehearsal@example.com"}, args...)...)
		return err
	}
	set := func(version string) (*repo, error) {
		r, err := openRepo(dir)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(r.set(version), git("add", "-A"), git("commit", "-q", "--allow-empty", "-m", version)); err != nil {
			return nil, err
		}
		return openRepo(dir)
	}
	compare := func(r *repo, how, says string, fails bool) error {
		var out strings.Builder
		err := r.apidiff(ctx, &out)
		if (err != nil) == fails && strings.Contains(out.String(), says) {
			return nil
		}
		return errors.Join(fmt.Errorf("comparing the API %s: want %q, and an error: %t\n%s", how, says, fails, out.String()), err)
	}
	if err := git("init", "-q"); err != nil {
		return "", err
	}
	r, err := set("v0.901.0") // higher than any real version
	if err != nil {
		return "", err
	}
	if err := r.zipAll(io.Discard); err != nil {
		return "", err
	}
	if err := compare(r, "before the first tag", "no version is tagged", false); err != nil {
		return "", err
	}
	tags, err := r.tags("v0.901.0")
	if err != nil {
		return "", err
	}
	for _, tag := range tags {
		if err := git("tag", tag); err != nil {
			return "", err
		}
	}
	if _, err := r.tags("v0.901.0"); err == nil {
		return "", errors.New("a version that is tagged already is not refused")
	}
	note := fmt.Sprintf("%d tags", len(tags))

	if r, err = set("v0.901.1"); err != nil {
		return "", err
	}
	if err := compare(r, "with itself", "podsource/netns\nno changes", false); err != nil {
		return "", err
	}
	gone := filepath.Join(dir, "gc", "reconciler.go")
	text, err := os.ReadFile(gone)
	if err != nil {
		return "", err
	}
	const method = "Reconcile(ctx context.Context)"
	if err := os.WriteFile(gone, []byte(strings.Replace(string(text), method, "Renamed(ctx context.Context)", 1)), 0o644); err != nil {
		return "", err
	}
	const removed = "Reconciler).Reconcile: removed"
	if err := compare(r, "as a patch without a method", removed, true); err != nil {
		return "", err
	}
	if r, err = set("v0.902.0"); err != nil {
		return "", err
	}
	return note, compare(r, "as a minor version without a method", removed, false)
}
