// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	span = regexp.MustCompile("`([^`\n]+)`")
	// A command of this repository or of Go, after an optional prompt, directory and variables.
	typed     = regexp.MustCompile(`^(?:\$ )?(?:cd (\S+) && )?(?:[A-Z_]+=\S+ )*((?:go (?:test|build|run|install|get)|go -C \S+ (?:test|run)|(?:\./)?hostlocal-gc|cniserver) .*|bash \..*)$`)
	quoted    = regexp.MustCompile(`'[^']* [^']*'`)
	unquoted  = strings.NewReplacer(`"`, "", "'", "", "--source ...", "--source cri", " > plan.json", "")
	remark    = regexp.MustCompile(` +#.*$`)
	ofTheTest = []string{"v", "race", "short", "timeout", "run", "bench", "benchtime", "count"}
)

// commandsOf returns the commands in the blocks and in the text of a document, including those
// that kubectl runs in a pod.
func commandsOf(text string) (all [][]string) {
	inBlock, isShell := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		lang, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence:
			inBlock, isShell = !inBlock, lang == "" || lang == "sh" || lang == "console"
		case !inBlock:
			for _, s := range span.FindAllStringSubmatch(line, -1) {
				all = append(all, typed.FindStringSubmatch(inPod(s[1])))
			}
		case isShell:
			for part := range strings.SplitSeq(remark.ReplaceAllString(line, ""), " | ") {
				all = append(all, typed.FindStringSubmatch(inPod(part)))
			}
		}
	}
	return slices.DeleteFunc(all, func(c []string) bool { return c == nil })
}

func inPod(line string) string {
	if _, inner, ok := strings.Cut(line, " -- "); ok && strings.HasPrefix(line, "kubectl ") {
		return inner
	}
	return line
}

// The directories, tests and flags of commands in documents exist. Tests of the programs run
// the commands that are shown with an output, and .ci/run those of README.md.
func TestCommands(t *testing.T) {
	root, bin := filepath.Join("..", ".."), t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./hostlocal-gc", "./cniserver")
	build.Dir = filepath.Join(root, "examples")
	build.Env = append(os.Environ(), "GOWORK=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found := 0
	for name, text := range read(t, "*.md") {
		for _, c := range commandsOf(text) {
			found++
			words := strings.Fields(unquoted.Replace(quoted.ReplaceAllString(c[2], "quoted")))
			dir := filepath.Join(root, c[1])
			if filepath.Dir(name) != "." && strings.HasPrefix(words[0], "go") && slices.Contains(words, ".") && c[1] == "" && !slices.Contains(words, "-C") {
				dir = "" // the text says of which package
			}
			var wrong string
			switch program := filepath.Base(words[0]); program {
			case "go":
				wrong = checkGo(t, dir, words[1:])
			case "bash":
				if _, err := os.Stat(filepath.Join(root, words[1])); err != nil {
					wrong = err.Error()
				}
			default: // with --help a command parses its flags and does nothing else
				out, err := exec.CommandContext(t.Context(), filepath.Join(bin, program), append(words[1:], "--help")...).CombinedOutput()
				if err != nil {
					wrong = string(out)
				}
			}
			if wrong != "" {
				t.Errorf("%s: %s: %s", name, c[0], wrong)
			}
		}
	}
	if found < 60 {
		t.Errorf("found only %d commands; commandsOf may miss some", found)
	}
}

// checkGo returns what is wrong with a go command in a directory, or "". An empty directory is
// that of any package.
func checkGo(t *testing.T, dir string, words []string) string {
	t.Helper()
	if words[0] == "-C" {
		dir, words = filepath.Join(dir, words[1]), words[2:]
	}
	tests, flags := "", []string(nil)
	for i := 1; i < len(words); i++ {
		w := words[i]
		flag, isFlag := strings.CutPrefix(w, "-")
		switch {
		case isFlag && flag == "run":
			i++
			tests = words[i]
		case isFlag && !slices.Contains(ofTheTest, flag):
			flags = append(flags, flag)
			i += min(1, len(words)-1-i)
		case isFlag && !slices.Contains([]string{"v", "race", "short"}, flag):
			i++ // its value
		case isFlag, w == "work", words[0] == "run" && i > 1:
		default:
			path, _, _ := strings.Cut(strings.TrimPrefix(w, "github.com/hostlocal-gc/hostlocal-gc"), "@")
			at := filepath.Join(dir, filepath.FromSlash(strings.TrimSuffix(path, "...")))
			if strings.HasPrefix(w, "github.com/") {
				at = filepath.Join("..", "..", filepath.FromSlash(path))
			}
			if _, err := os.Stat(at); err != nil {
				return err.Error()
			}
			if dir != "" && words[0] == "test" {
				dir = at
			}
		}
	}
	if words[0] != "test" {
		return ""
	}
	var code strings.Builder
	pattern := "*_test.go"
	if rel, err := filepath.Rel(filepath.Join("..", ".."), dir); dir != "" && err == nil {
		pattern = filepath.ToSlash(filepath.Join(rel, pattern))
	}
	for _, text := range read(t, pattern) {
		code.WriteString(text)
	}
	if tests != "" && tests != "^$" && !regexp.MustCompile(`\nfunc Test\w*`+strings.TrimPrefix(strings.TrimPrefix(tests, "^"), "Test")).MatchString(code.String()) {
		return "there is no such test"
	}
	for _, f := range flags {
		if !strings.Contains(code.String(), `"`+f+`"`) {
			return "there is no flag -" + f
		}
	}
	return ""
}
