// SPDX-License-Identifier: Apache-2.0

// Release prepares and rehearses a release of the modules of this repository, which all have one version and
// require it of each other. A maintainer runs, in .ci/release and with GOWORK=off in the environment:
//
//	go run . set v0.1.0  # writes the version into every go.mod and go.work
//	go run . tags v0.1.0 # prints the tags in the order to push them
//	go run . zip         # checks that every module can be zipped, as the module proxy does
//	go run . rehearse    # fetches and builds all modules from outside, and two agents that embed them
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	root, err := command(".", nil, "git", "rev-parse", "--show-toplevel")
	if err == nil {
		err = run(strings.TrimSpace(root), os.Args[1:], os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(root string, args []string, out io.Writer) error {
	r, err := open(root)
	switch {
	case err != nil:
		return err
	case len(args) == 2 && args[0] == "set":
		return r.set(args[1])
	case len(args) == 2 && args[0] == "tags":
		return r.tags(args[1], out)
	case len(args) == 1 && args[0] == "zip":
		return r.zip("", "v0.1.0")
	case len(args) == 1 && args[0] == "rehearse":
		return r.rehearse(out)
	}
	return errors.New("usage: go run . set VERSION | tags VERSION | zip | rehearse")
}

// command runs a program in a directory and returns what it prints.
func command(dir string, env []string, name string, args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env...), &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s, in %s: %w\n%s%s", cmd, dir, err, out, stderr.String())
	}
	return string(out), err
}

// A repo is the work tree of a repository with several modules.
type repo struct {
	root, path string   // the directory, and the path of the root module
	modules    []*goMod // each after those that it requires
}

// A goMod is the go.mod of a module, in a directory below the root.
type goMod struct {
	dir, path, text string
	released        bool
}

var (
	modulePath = regexp.MustCompile(`(?m)^module (\S+)$`)
	unreleased = regexp.MustCompile(`(?m)^// (Kept out of go\.work|Not released)`)
	versions   = regexp.MustCompile(`@\S+`)
)

// required matches a module that is required or replaced, with its version. path is a regular expression.
func required(path string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)(^|\s)(` + path + `) (v\S+)`)
}

func (m *goMod) requires(other *goMod) bool {
	return required(regexp.QuoteMeta(other.path)).MatchString(m.text)
}

// open reads every go.mod that git tracks, or that is new and not ignored.
func open(root string) (*repo, error) {
	r := &repo{root: root}
	names, err := command(root, nil, "git", "ls-files", "-co", "--exclude-standard", "--deduplicate", "--", "go.mod", "*/go.mod")
	var rest []*goMod
	for name := range strings.FieldsSeq(names) {
		text, readErr := os.ReadFile(filepath.Join(root, name))
		found := modulePath.FindSubmatch(text)
		if readErr != nil || found == nil {
			return nil, errors.Join(readErr, fmt.Errorf("%s has no module line", name))
		}
		m := &goMod{path.Dir(name), string(found[1]), string(text), !unreleased.Match(text)}
		if rest = append(rest, m); m.dir == "." {
			r.path = m.path
		}
	}
	for len(rest) > 0 && err == nil {
		i := slices.IndexFunc(rest, func(m *goMod) bool { return !slices.ContainsFunc(rest, m.requires) })
		if i < 0 {
			return nil, fmt.Errorf("%s and others require each other in a circle", rest[0].path)
		}
		if m := rest[i]; m.released && m.path != path.Join(r.path, m.dir) { // a tag selects the module by its directory
			return nil, fmt.Errorf("%s/go.mod: the module %s can't be fetched: rename or move it", m.dir, m.path)
		}
		r.modules, rest = append(r.modules, rest[i]), slices.Delete(rest, i, i+1)
	}
	return r, err
}

// set writes a version into every go.mod and go.work.
func (r *repo) set(version string) error {
	if !regexp.MustCompile(`^v[01]\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`).MatchString(version) {
		return fmt.Errorf("%q is no version such as v0.1.0", version)
	}
	work, err := os.ReadFile(filepath.Join(r.root, "go.work"))
	if err != nil {
		return err
	}
	texts := map[string]string{"go.work": string(work)}
	for _, m := range r.modules {
		texts[path.Join(m.dir, "go.mod")] = m.text
	}
	for name, text := range texts {
		text = required(regexp.QuoteMeta(r.path)+`(?:/\S+)?`).ReplaceAllString(text, "${1}${2} "+version)
		err = errors.Join(err, os.WriteFile(filepath.Join(r.root, name), []byte(text), 0o644))
	}
	return err
}

// tags prints the tags of a release in the order to push them. A module proxy keeps a version for ever, so the work tree
// must be committed, the version set, and no tag may exist.
func (r *repo) tags(version string, out io.Writer) error {
	if changed, err := command(r.root, nil, "git", "status", "--porcelain", "--untracked-files=all"); err != nil || changed != "" {
		return errors.Join(err, fmt.Errorf("the work tree differs from the commit to tag; commit or remove:\n%s", changed))
	}
	var tags []string
	for _, m := range r.modules {
		if !m.released {
			continue
		}
		for _, other := range r.modules {
			if m.requires(other) && !other.released {
				return fmt.Errorf("%s requires %s, which is never tagged", m.path, other.path)
			}
		}
		for _, got := range required(regexp.QuoteMeta(r.path)+`(?:/\S+)?`).FindAllStringSubmatch(m.text, -1) {
			if got[3] != version {
				return fmt.Errorf("%s requires %s %s: run set %s, and commit", m.path, got[2], got[3], version)
			}
		}
		tags = append(tags, strings.TrimPrefix(path.Join(m.dir, version), "./"))
	}
	if there, err := command(r.root, nil, "git", append([]string{"tag", "--list"}, tags...)...); err != nil || there != "" {
		return errors.Join(err, fmt.Errorf("these tags exist, and a proxy may have them: use the next version\n%s", there))
	}
	_, err := fmt.Fprintln(out, strings.Join(tags, "\n"))
	return err
}

// zip zips every module as it is committed, and writes the released ones into a module proxy in a directory, if that is not "".
func (r *repo) zip(proxy, version string) (err error) {
	for _, m := range r.modules {
		var zipped bytes.Buffer
		dir, of := strings.TrimPrefix(m.dir+"/", "./"), module.Version{Path: m.path, Version: version}
		err = errors.Join(err, zip.CreateFromVCS(&zipped, of, r.root, "HEAD", dir))
		at := filepath.Join(proxy, m.path, "@v") // a proxy would escape upper case, which these paths do not have
		for name, text := range map[string]string{
			"list": version, version + ".info": `{"Version":"` + version + `"}`, version + ".mod": m.text, version + ".zip": zipped.String()} {
			if m.released && proxy != "" {
				err = errors.Join(err, os.MkdirAll(at, 0o755), os.WriteFile(filepath.Join(at, name), []byte(text), 0o644))
			}
		}
	}
	return err
}

// rehearse serves the modules at a made-up version as a proxy would, and fetches and builds each alone, and all in agents with two
// versions of client-go, which must not move. The go command adds what a go.mod lacks: go mod tidy -diff in .ci/run finds that.
func (r *repo) rehearse(out io.Writer) error {
	tmp, err := os.MkdirTemp("", "rehearsal-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	tree, version := filepath.Join(tmp, "tree"), fmt.Sprintf("v0.900.%d", time.Now().Unix())
	_, cloneErr := command(tmp, nil, "git", "clone", "-q", r.root, tree)
	clone, openErr := open(tree)
	if err := errors.Join(cloneErr, openErr); err != nil {
		return err
	}
	setErr := clone.set(version)
	_, gitErr := command(tree, nil, "git", "-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qam", version)
	configured, goErr := command(tmp, nil, "go", "env", "GOMODCACHE", "GOPROXY")
	if clone, openErr = open(tree); openErr == nil {
		openErr = clone.zip(filepath.Join(tmp, "proxy"), version)
	}
	if err := errors.Join(setErr, gitErr, goErr, openErr); err != nil {
		return err
	}
	cache, proxies, _ := strings.Cut(strings.TrimSpace(configured), "\n")
	env := []string{"GOWORK=off", "GOFLAGS=-mod=mod -modcacherw -trimpath", "CGO_ENABLED=0", "GONOSUMDB=" + r.path, "GOBIN=" + tmp,
		"GOMODCACHE=" + tmp + "/cache", "GOPROXY=file://" + tmp + "/proxy,file://" + cache + "/cache/download," + proxies}
	// build gets and builds packages in a module of their own, and returns the versions of all modules of Kubernetes.
	build := func(name string, packages ...string) []string {
		dir := filepath.Join(tmp, name)
		goErr := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(dir+"/go.mod", []byte("module example.com/outside\n\ngo 1.26.0\n"), 0o644))
		for _, do := range []string{"get", "build"} {
			_, failed := command(dir, env, "go", append([]string{do}, packages...)...)
			goErr = errors.Join(goErr, failed)
			packages = strings.Fields(versions.ReplaceAllString(strings.Join(packages, " "), ""))
		}
		list, listErr := command(dir, env, "go", "list", "-m", "all")
		fmt.Fprintf(out, "%s: built with %d modules: %t\n", name, strings.Count(list, "\n")-1, goErr == nil)
		err = errors.Join(err, goErr, listErr)
		return regexp.MustCompile(`(?m)^(sigs\.)?k8s\.io/.*`).FindAllString(list, -1)
	}
	var all []string
	for _, m := range clone.modules {
		if m.released && m.dir != "examples" {
			all = append(all, m.path+"/...@"+version)
			build("module "+path.Base(m.path), all[len(all)-1])
		}
	}
	for _, client := range []string{"v0.31.1", "v0.37.0"} {
		agent := []string{"k8s.io/client-go/kubernetes/typed/core/v1@" + client, "k8s.io/client-go/tools/cache@" + client}
		before, after := build("agent with client-go "+client, agent...), build("the same with all of these, "+client, append(agent, all...)...)
		for _, was := range before {
			if !slices.Contains(after, was) {
				err = errors.Join(err, fmt.Errorf("an agent with client-go %s has %s, and another version if it embeds these modules", client, was))
			}
		}
	}
	_, installErr := command(tmp, env, "go", "install", r.path+"/examples/hostlocal-gc@"+version)
	_, helpErr := command(tmp, nil, filepath.Join(tmp, "hostlocal-gc"), "--help")
	return errors.Join(err, installErr, helpErr)
}
