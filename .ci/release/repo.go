// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// A go.mod with a line that begins with one of these comments is never tagged.
var unreleased = regexp.MustCompile(`(?m)^// (Kept out of go\.work|Not released)`)

// A repo is the work tree of a repository with several modules.
type repo struct {
	root    string
	modules []*mod // the root module first, and each module after those that it requires
}

// A mod is one module.
type mod struct {
	dir      string // slash-separated below the root, "." for the root module
	path     string
	file     *modfile.File
	released bool
}

// openRepo reads every go.mod that is tracked by git, or new and not ignored.
func openRepo(root string) (*repo, error) {
	r := &repo{root: root}
	files, err := r.files("go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	if !slices.Contains(files, "go.mod") {
		return nil, errors.New("there is no root module")
	}
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, err
		}
		if file.Module == nil {
			return nil, fmt.Errorf("%s has no module line", name)
		}
		m := &mod{dir: strings.TrimSuffix(strings.TrimSuffix(name, "go.mod"), "/"), path: file.Module.Mod.Path, file: file}
		if m.dir == "" {
			m.dir = "."
		}
		m.released = !unreleased.Match(text)
		r.modules = append(r.modules, m)
	}
	// The directory in a tag selects the module.
	for _, m := range r.modules {
		if want := path.Join(r.root1().path, m.dir); m.released && m.path != want {
			return nil, fmt.Errorf("%s/go.mod: the module is called %s, and can be fetched only as %s: rename it or move it", m.dir, m.path, want)
		}
	}
	return r, r.sort()
}

// files returns the files that exist and are tracked by git, or new and not ignored.
func (r *repo) files(patterns ...string) ([]string, error) {
	args := append([]string{"-C", r.root, "ls-files", "-co", "--exclude-standard", "-z", "--"}, patterns...)
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("asking git for its files: %w", err)
	}
	var names []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if name == "" {
			continue
		}
		if _, err := os.Lstat(filepath.Join(r.root, name)); err == nil { // else removed, and not yet committed
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// byPath returns the module of this repository with that path, or nil.
func (r *repo) byPath(path string) *mod {
	for _, m := range r.modules {
		if m.path == path {
			return m
		}
	}
	return nil
}

// inRepo returns the requirements of m that are modules of this repository.
func (r *repo) inRepo(m *mod) (all []module.Version) {
	for _, req := range m.file.Require {
		if r.byPath(req.Mod.Path) != nil {
			all = append(all, req.Mod)
		}
	}
	return all
}

// sort puts modules after those that they require, and otherwise in the order of
// their paths.
func (r *repo) sort() error {
	rest := slices.SortedFunc(slices.Values(r.modules), func(a, b *mod) int { return strings.Compare(a.path, b.path) })
	done := make(map[string]bool)
	var sorted []*mod
	for len(rest) > 0 {
		i := slices.IndexFunc(rest, func(m *mod) bool {
			return !slices.ContainsFunc(r.inRepo(m), func(v module.Version) bool { return !done[v.Path] })
		})
		if i < 0 {
			return fmt.Errorf("%s and others require each other in a circle", rest[0].path)
		}
		done[rest[i].path] = true
		sorted = append(sorted, rest[i])
		rest = slices.Delete(rest, i, i+1)
	}
	r.modules = sorted
	return nil
}

// version returns the version in all requirements within the repository, which must be the same.
func (r *repo) version() (string, error) {
	var errs []error
	found, where := "", ""
	note := func(file string, v module.Version) {
		switch {
		case checkVersion(v.Version) != nil:
			errs = append(errs, fmt.Errorf("%s: %s: %w", file, v.Path, checkVersion(v.Version)))
		case found == "":
			found, where = v.Version, file
		case v.Version != found:
			errs = append(errs, fmt.Errorf("%s: %s is required at %s, and %s has %s", file, v.Path, v.Version, where, found))
		}
	}
	for _, m := range r.modules {
		for _, v := range r.inRepo(m) {
			if m.released && !r.byPath(v.Path).released {
				errs = append(errs, fmt.Errorf("%s requires %s, which is never tagged", m.path, v.Path))
			}
			note(m.dir+"/go.mod", v)
		}
	}
	if work, err := r.work(); err != nil {
		errs = append(errs, err)
	} else if work != nil {
		replaced := make(map[string]bool)
		for _, rep := range work.Replace {
			if r.byPath(rep.Old.Path) != nil {
				note("go.work", rep.Old)
				replaced[rep.Old.Path] = true
			}
		}
		for _, m := range r.modules {
			for _, v := range r.inRepo(m) {
				if m.released && !replaced[v.Path] {
					errs = append(errs, fmt.Errorf("go.work does not replace %s, which %s requires", v.Path, m.path))
				}
			}
		}
	}
	if found == "" && len(errs) == 0 {
		errs = append(errs, errors.New("no module here requires another"))
	}
	return found, errors.Join(errs...)
}

// checkVersion fails unless v may be the version of a module without a major version suffix.
func checkVersion(v string) error {
	switch {
	case semver.Canonical(v) != v || v == "":
		return fmt.Errorf("%q is no version such as v0.1.0", v)
	case semver.Major(v) != "v0" && semver.Major(v) != "v1":
		return fmt.Errorf("%s would need the suffix /%s in every module path", v, semver.Major(v))
	case module.IsPseudoVersion(v), semver.Compare(v, "v0.0.1-0") < 0:
		return fmt.Errorf("%s is no version that is tagged", v)
	}
	return nil
}

// work reads go.work; nil if there is none.
func (r *repo) work() (*modfile.WorkFile, error) {
	text, err := os.ReadFile(filepath.Join(r.root, "go.work"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return modfile.ParseWork("go.work", text, nil)
}

// set writes version into all requirements within the repository, and into go.work, which
// replaces that version with the directories of the modules.
func (r *repo) set(version string) error {
	if err := checkVersion(version); err != nil {
		return err
	}
	texts := make(map[string][]byte) // of all files, before the first is written
	for _, m := range r.modules {
		text, err := r.goMod(m, version)
		if err != nil {
			return err
		}
		texts[path.Join(m.dir, "go.mod")] = text
	}
	work, err := r.work()
	if err != nil {
		return err
	}
	if work != nil {
		for _, rep := range work.Replace {
			if r.byPath(rep.Old.Path) == nil {
				continue
			}
			for i, token := range rep.Syntax.Token {
				if token == rep.Old.Version {
					rep.Syntax.Token[i] = version
				}
			}
		}
		texts["go.work"] = modfile.Format(work.Syntax)
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if err := r.replaceFile(name, texts[name]); err != nil {
			return err
		}
	}
	return nil
}

func (r *repo) replaceFile(name string, text []byte) error {
	file := filepath.Join(r.root, name)
	old, err := os.ReadFile(file)
	if err != nil || bytes.Equal(old, text) {
		return err
	}
	fmt.Println(name)
	return os.WriteFile(file, text, 0o644)
}

// goMod returns the go.mod of m with version in the requirements within the
// repository.
func (r *repo) goMod(m *mod, version string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(r.root, m.dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	file, err := modfile.Parse(m.dir+"/go.mod", text, nil)
	if err != nil {
		return nil, err
	}
	for _, v := range r.inRepo(m) {
		if err := file.AddRequire(v.Path, version); err != nil {
			return nil, err
		}
	}
	return file.Format()
}

// tags returns the tags of a release in the order to push them. The version must be the one
// that the modules require of each other, the work tree must have no changes, and the tags must
// not exist: a module proxy keeps a version for ever.
func (r *repo) tags(version string) ([]string, error) {
	if err := checkVersion(version); err != nil {
		return nil, err
	}
	changed, err := r.git("status", "--porcelain", "--untracked-files=all")
	if err != nil {
		return nil, err
	}
	if changed != "" {
		return nil, fmt.Errorf("the work tree differs from the commit to tag; commit or remove:\n%s", changed)
	}
	if found, err := r.version(); err != nil || found != version {
		return nil, errors.Join(err, fmt.Errorf("the modules require %q of each other: run set %s, and commit", found, version))
	}
	var tags []string
	for _, m := range r.modules {
		switch {
		case !m.released:
		case m.dir == ".":
			tags = append(tags, version)
		default:
			tags = append(tags, m.dir+"/"+version)
		}
	}
	there, err := r.git(append([]string{"tag", "--list"}, tags...)...)
	if err != nil {
		return nil, err
	}
	if there != "" {
		return nil, fmt.Errorf("these tags exist, and a proxy may have them: use the next version\n%s", there)
	}
	return tags, nil
}

// git returns the output of git.
func (r *repo) git(args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", r.root}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimRight(string(out), "\n"), nil
}
