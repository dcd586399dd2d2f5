// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/semver"
)

// read returns the tracked files of the repository that match a pattern of git's.
func read(t *testing.T, pattern string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-co", "--exclude-standard", "--", pattern)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		text, err := os.ReadFile(filepath.Join(cmd.Dir, name))
		switch {
		case os.IsNotExist(err): // removed, and not yet committed
		case err != nil:
			t.Fatal(err)
		default:
			files[name] = string(text)
		}
	}
	return files
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	named   = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)`")
)

// The files and chapters that documents link to exist.
func TestLinks(t *testing.T) {
	documents := read(t, "*.md")
	anchors := make(map[string]map[string]bool)
	for name, text := range documents {
		anchors[name] = make(map[string]bool)
		for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			slug := notSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(h[1])), "")
			anchors[name][strings.ReplaceAll(slug, " ", "-")] = true
		}
	}
	links := 0
	for name, text := range documents {
		for _, l := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(l[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			path := name
			if target != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(name), target))
			}
			if _, err := os.Stat(filepath.Join("..", "..", path)); err != nil {
				t.Errorf("%s links to %s: %v", name, l[1], err)
			}
			if anchor != "" && anchors[path] != nil && !anchors[path][anchor] {
				t.Errorf("%s links to %s, and %s has no such chapter", name, l[1], path)
			}
		}
	}
	if links < 50 {
		t.Errorf("found only %d links; the test may miss some", links)
	}
}

// Tests that documents name exist.
func TestNamedTests(t *testing.T) {
	var code strings.Builder
	for _, text := range read(t, "*_test.go") {
		code.WriteString(text)
	}
	for name, text := range read(t, "*.md") {
		for _, test := range named.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(code.String(), "\nfunc "+test[1]+"(") {
				t.Errorf("%s names %s, which does not exist", name, test[1])
			}
		}
	}
}

// README.md is an introduction, and no manual.
func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(read(t, "README.md")["README.md"], "\n"); n > 180 {
		t.Errorf("README.md has %d lines, more than 180", n)
	}
}

// The table of tested versions matches the requirements in go.mod files, and the lists of this
// program.
func TestVersions(t *testing.T) {
	readme := read(t, "README.md")["README.md"]
	modules := read(t, "*go.mod")
	_, table, found := strings.Cut(readme, "| tested, in |")
	if !found {
		t.Fatal("README.md has no table of versions")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	says := func(what string) {
		t.Helper()
		if !regexp.MustCompile(regexp.QuoteMeta(what) + `\b`).MatchString(table) {
			t.Errorf("README.md: the table of versions does not say %q", what)
		}
	}
	for _, row := range []struct{ name, module, path string }{
		{"API server", "podsource/kube/servertest", "k8s.io/kubernetes"},
		{"etcd", "podsource/kube/servertest", "go.etcd.io/etcd/server/v3"},
		{"kubelet's Pods API", "podsource/kubelet/servertest", "k8s.io/kubernetes"},
		{"containerd |", "podsource/cri/containerdtest", "github.com/containerd/containerd/v2"},
		{"nerdctl", "podsource/cri/containerdtest/internal/tools/nerdctl", "github.com/containerd/nerdctl"},
		{"Multus", "examples/internal/tools/multus", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"},
		{"plugins", ".", "github.com/containernetworking/plugins"},
	} {
		required := regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(row.path) + ` v(\S+)`).FindStringSubmatch(modules[filepath.Join(row.module, "go.mod")])
		if required == nil {
			t.Errorf("%s/go.mod does not require %s", row.module, row.path)
			continue
		}
		says(row.name + " " + required[1])
	}
	minor := func(k kubernetes) string { return strings.TrimPrefix(semver.MajorMinor(k.version), "v") }
	var all, agents []string
	for _, k := range versions {
		all = append(all, minor(k))
		if k.agent {
			agents = append(agents, minor(k))
		}
	}
	says("apimachinery " + strings.Join(all, ", "))
	says("client-go " + strings.Join(agents, ", "))
	says("| Go | " + floorOfGo)
}
