// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// apidiffTool compares the exported names of two versions of a module.
const apidiffTool = "golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e"

// lastTag returns the highest version of the root module that is tagged in the history of
// this commit, or "" if there is none.
func (r *repo) lastTag() (string, error) {
	list, err := r.git("tag", "--list", "--merged", "HEAD", "v*")
	if err != nil {
		return "", err
	}
	versions := slices.DeleteFunc(strings.Fields(list), func(v string) bool { return checkVersion(v) != nil })
	semver.Sort(versions)
	if len(versions) == 0 {
		return "", nil
	}
	return versions[len(versions)-1], nil
}

// apidiff prints the changes of exported names since the last tag. The next version is the one
// that the modules require of each other. If it is a patch version, or a minor version after
// v1.0.0, a change that breaks users is an error. Before the first tag there is nothing to
// compare with.
func (r *repo) apidiff(ctx context.Context, out io.Writer) error {
	last, err := r.lastTag()
	if err != nil {
		return err
	}
	if last == "" {
		fmt.Fprintln(out, "no version is tagged in the history of this commit: there is no API to compare with (a clone without tags needs git fetch --tags)")
		return nil
	}
	next, err := r.version()
	if err != nil {
		return err
	}
	if semver.Compare(next, last) <= 0 {
		return fmt.Errorf("the modules require %s of each other, and %s is tagged: run set with the next version", next, last)
	}
	dir, err := os.MkdirTemp("", "apidiff-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	tree := filepath.Join(dir, "old")
	if _, err := r.git("-c", "advice.detachedHead=false", "clone", "-q", "--shared", "--branch", last, r.root, tree); err != nil {
		return err
	}
	old, err := openRepo(tree)
	if err != nil {
		return err
	}
	if _, err := output(ctx, dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOBIN="+dir), "go", "install", apidiffTool); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, against %s:\n", next, last)
	var broken []string
	for _, m := range old.modules {
		packages, err := (&rehearsal{repo: old}).packages(m)
		if err != nil {
			return err
		}
		if !m.released || len(packages) == 0 {
			continue
		}
		changes := "Incompatible changes:\n- the module: removed"
		if now := r.byPath(m.path); now != nil {
			if changes, err = apiChanges(ctx, dir, old, r, m, now); err != nil {
				return err
			}
		}
		if changes == "" {
			changes = "no changes"
		}
		if strings.Contains(changes, "Incompatible changes:") {
			broken = append(broken, m.path)
		}
		fmt.Fprintf(out, "\n%s\n%s\n", m.path, changes)
	}
	if mayBreak := semver.Major(last) == "v0" && semver.MajorMinor(next) != semver.MajorMinor(last); len(broken) > 0 && !mayBreak {
		return fmt.Errorf("%s breaks users of %s, which only the next minor version after a v0 may: undo the incompatible changes, or run set with that version\n%s",
			next, last, strings.Join(broken, "\n"))
	}
	return nil
}

// apiChanges returns the tool's output for a module in two work trees.
func apiChanges(ctx context.Context, dir string, oldRepo, newRepo *repo, was, is *mod) (string, error) {
	tool := filepath.Join(dir, "apidiff")
	run := func(r *repo, m *mod, args ...string) (string, error) {
		work := "off" // else the modules of go.work below this one would be compared, too
		if len(r.inRepo(m)) > 0 {
			work = filepath.Join(r.root, "go.work")
		}
		env := append(os.Environ(), "GOWORK="+work, "GOFLAGS=-mod=readonly")
		return output(ctx, filepath.Join(r.root, filepath.FromSlash(m.dir)), env, tool, append(args, m.path)...)
	}
	file := filepath.Join(dir, "export")
	if _, err := run(oldRepo, was, "-m", "-w", file); err != nil {
		return "", err
	}
	return run(newRepo, is, "-m", file)
}
