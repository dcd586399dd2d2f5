// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fenced  = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```")
	link    = regexp.MustCompile(`\]\(([^)\s#]*)(#[^)\s]*)?(?:\s[^)]*)?\)`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	aTest   = regexp.MustCompile("`(Test[A-Z]\\w*)`")
)

// The files and chapters that documents link to exist. Each block of Go stands in a file that the compiler sees, line by line;
// "..." is any lines. Each test that a document names exists.
func TestDocuments(t *testing.T) {
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-co", "--exclude-standard", "--", "*.md", "*.go")
	list.Dir = filepath.Join("..", "..")
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	texts, code := make(map[string]string), ""
	for name := range strings.Lines(string(names)) {
		name = strings.TrimSpace(name)
		text, err := os.ReadFile(filepath.Join(list.Dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed, and not yet committed
		case err != nil:
			t.Fatal(err)
		case strings.HasSuffix(name, ".go"):
			code += "\n" + string(text)
		default:
			texts[name] = string(text)
		}
	}
	links, blocks := 0, 0
	for name, text := range texts {
		for _, test := range aTest.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(code, "\nfunc "+test[1]+"(") {
				t.Errorf("%s names %s, and there is no such test", name, test[1])
			}
		}
		for _, b := range fenced.FindAllStringSubmatch(text, -1) {
			if b[1] != "go" {
				continue
			}
			var lines []string
			for line := range strings.Lines(b[2]) {
				lines = append(lines, regexp.QuoteMeta(strings.TrimSpace(line)))
			}
			block := strings.ReplaceAll(`\n\s*`+strings.Join(lines, `\n\s*`)+`\n`, `\n\s*\.\.\.\n`, `\n(?:.*\n)*?`)
			if blocks++; !regexp.MustCompile(block).MatchString(code) {
				t.Errorf("%s: no Go file has this block:\n%s", name, b[2])
			}
		}
		for _, l := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			to := name
			if links++; strings.Contains(l[1], "://") {
				continue
			} else if l[1] != "" {
				to = filepath.Join(filepath.Dir(name), l[1])
			}
			if _, err := os.Stat(filepath.Join(list.Dir, to)); err != nil {
				t.Errorf("%s links to %s: %v", name, l[0], err)
			}
			there := l[2] == "" || texts[to] == ""
			for line := range strings.Lines(fenced.ReplaceAllString(texts[to], "")) {
				heading := strings.TrimSpace(strings.TrimLeft(strings.ToLower(line), "#"))
				there = there || line[0] == '#' && "#"+strings.ReplaceAll(notSlug.ReplaceAllString(heading, ""), " ", "-") == l[2]
			}
			if !there {
				t.Errorf("%s links to %s, and there is no such chapter", name, l[0])
			}
		}
	}
	if links < 50 || blocks < 5 {
		t.Errorf("found only %d links and %d blocks", links, blocks)
	}
}
