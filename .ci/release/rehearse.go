// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A rehearsal has a module proxy with all released modules at a fake version, and builds that
// fetch them from it.
type rehearsal struct {
	*repo
	version string   // the fake version
	dir     string   // temporary
	env     []string // of every go command
}

// A trial is a build or a command that must work from outside. It returns a note for the table.
type trial struct {
	name string
	run  func(ctx context.Context, dir string) (string, error)
}

// rehearse runs the trials whose names contain only. If that is empty, it runs all.
func (r *repo) rehearse(ctx context.Context, out io.Writer, only string) error {
	began := time.Now()
	h, err := r.newRehearsal(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(h.dir) }()
	cache, err := h.goCommand(ctx, h.dir, "env", "GOMODCACHE")
	if err != nil {
		return err
	}
	defer forget(cache, r.root1().path, h.version)

	trials, err := h.trials(ctx)
	if err != nil {
		return err
	}
	var rows []string
	var failed []string
	for i, t := range trials {
		if !strings.Contains(t.name, only) {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		started := time.Now()
		dir := filepath.Join(h.dir, fmt.Sprint("trial", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		note, err := t.run(ctx, dir)
		result := "ok  "
		if err != nil {
			result = "FAIL"
			failed = append(failed, t.name)
			fmt.Fprintf(out, "%s\n%v\n", t.name, err)
		}
		row := fmt.Sprintf("%s %5.1f s  %-44s %s", result, time.Since(started).Seconds(), t.name, note)
		fmt.Fprintln(out, strings.TrimRight(row, " "))
		rows = append(rows, strings.TrimRight(row, " "))
	}
	if len(rows) == 0 {
		return fmt.Errorf("there is no trial with %q in its name", only)
	}
	fmt.Fprintf(out, "\nAll modules at %s, fetched and built from outside:\n\n%s\n\n%d trials in %.0f s\n",
		h.version, strings.Join(rows, "\n"), len(rows), time.Since(began).Seconds())
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d trials failed: %s", len(failed), len(rows), strings.Join(failed, "; "))
	}
	return nil
}

// root1 returns the root module.
func (r *repo) root1() *mod {
	for _, m := range r.modules {
		if m.dir == "." {
			return m
		}
	}
	return nil
}

// newRehearsal publishes the modules. The fake version has a hash of their content and of a
// random text, so that caches do not confuse two rehearsals.
func (r *repo) newRehearsal(ctx context.Context) (*rehearsal, error) {
	version, err := r.version()
	if err != nil {
		return nil, err
	}
	hash := sha256.New()
	hash.Write([]byte(rand.Text()))
	for _, m := range r.modules {
		if zipped, _, err := r.zipOf(m, version); err != nil {
			return nil, err
		} else if m.released {
			hash.Write(zipped)
		}
	}
	h := &rehearsal{repo: r, version: version + "-rehearsal.x" + hex.EncodeToString(hash.Sum(nil))[:12]}
	if h.dir, err = os.MkdirTemp("", "rehearsal-"); err != nil {
		return nil, err
	}
	proxy := filepath.Join(h.dir, "proxy")
	if err := r.publish(proxy, h.version); err != nil {
		return nil, errors.Join(err, os.RemoveAll(h.dir))
	}
	configured, err := output(ctx, h.dir, os.Environ(), "go", "env", "GOPROXY", "GONOSUMDB")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(h.dir))
	}
	proxies, noSum, _ := strings.Cut(configured, "\n")
	flags := "-mod=mod"
	if strings.Contains(os.Getenv("GOFLAGS"), "-modcacherw") {
		flags += " -modcacherw"
	}
	h.env = append(os.Environ(), "GOWORK=off", "GOFLAGS="+flags, "CGO_ENABLED=0",
		"GOPROXY=file://"+filepath.ToSlash(proxy)+","+proxies,
		"GONOSUMDB="+strings.Trim(r.root1().path+","+noSum, ","))
	return h, nil
}

// forget removes a fake version of the root module and of those below it from the module
// cache. Errors do not matter: a version that is left there has no effect.
func forget(cache, root, version string) {
	for _, below := range []string{filepath.Join(cache, "cache", "download"), cache} {
		owner := filepath.Dir(filepath.Join(below, filepath.FromSlash(root)))
		_ = filepath.WalkDir(owner, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "list" { // the list of cached versions
				if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), version) {
					_ = os.Remove(path)
				}
			}
			if err != nil || !strings.Contains(d.Name(), version) {
				return nil //nolint:nilerr // a file that can't be read is left there
			}
			if !d.IsDir() {
				_ = os.Remove(path)
				return nil
			}
			_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, _ error) error {
				if d != nil && d.IsDir() {
					_ = os.Chmod(p, 0o755)
				}
				return nil
			})
			_ = os.RemoveAll(path)
			return filepath.SkipDir
		})
	}
}

func (h *rehearsal) goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	return output(ctx, dir, h.env, "go", args...)
}

// output runs a command and returns its output, without leading and trailing white space.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(name), strings.Join(args, " "), err, stderr.String(), stdout.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}
