// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The examples of README.md are run in order. A comment "scene: NAME" makes a new node, and each
// line of a console block that begins with "$ " is run on it. -update rewrites the outputs.

var (
	sceneLine = regexp.MustCompile(`^<!-- scene: ([a-z]+) -->$`)
	// Times that differ between runs.
	holdTime = regexp.MustCompile(`\b([0-9.]+(µs|ms)|[0-9]+\.[0-9]+s)\b`)
	// Processes that differ between runs.
	lockHolders = regexp.MustCompile(`process [0-9]+ \([^)]*\)`)
)

func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p := player{t: t}
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case inside && line == "```":
			inside = false
		case inside && strings.HasPrefix(line, "$ "):
			out.WriteString(line + "\n" + p.play(strings.TrimPrefix(line, "$ ")))
			continue
		case inside:
			continue // an output, which play produces
		case line == "```console":
			inside = true
		default:
			if m := sceneLine.FindStringSubmatch(line); m != nil {
				p.open(m[1])
			}
		}
		out.WriteString(line + "\n")
	}
	if p.played < 5 {
		t.Errorf("only %d commands were found", p.played)
	}
	if *update {
		if err := os.WriteFile("README.md", []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), out.String()); diff != "" {
		t.Errorf("the outputs differ; go test . -update rewrites them (-README.md +played):\n%s", diff)
	}
}

// A player runs the examples.
type player struct {
	t      *testing.T
	node   *node
	status int // exit status of the last command
	played int
}

func (p *player) open(scene string) {
	make, ok := scenes[scene]
	if !ok {
		p.t.Fatalf("there is no scene %q", scene)
	}
	p.node = make(p.t)
}

// play runs a command line and returns its output.
func (p *player) play(line string) string {
	p.played++
	if p.node == nil {
		p.t.Fatalf("no scene is open for %q", line)
	}
	if line == "echo $?" {
		return fmt.Sprintln(p.status)
	}
	line, file, redirected := strings.Cut(line, " > ")
	args := strings.Fields(line)
	if args[0] != "hostlocal-gc" {
		p.t.Fatalf("only hostlocal-gc is played, not %q", line)
	}
	got := run(p.t, p.node.dir, nil, args[1:]...)
	p.status = got.status
	if redirected {
		p.node.put(file, got.stdout)
		return got.stderr
	}
	return lockHolders.ReplaceAllString(holdTime.ReplaceAllString(got.stdout, "0.1ms"), "process 4711 (cp)") + got.stderr
}
