// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// documents have Go blocks that the rehearsal builds. Tests of the examples build the blocks of
// their documents.
var documents = []string{"README.md", "gc/README.md", "podsource/README.md", ".github/CONTRIBUTING.md"}

// A frame makes a file of a Go block.
type frame struct {
	begins string   // the block's first line begins with it
	file   string   // its name
	before string   // ROOT stands for the path of the root module
	dots   []string // replacements of the lines that are an ellipsis, in their order
	after  string
}

var frames = []frame{
	{
		begins: "import (", file: "imports.go",
		before: "package outside\n\n",
		after:  "\nvar (\n\t_ gc.Report\n\t_ hostlocal.Store\n\t_ podsource.Pod\n\t_ = cri.New\n)\n",
	},
	{
		begins: `store := hostlocal.New("")`, file: "embed.go",
		before: `package outside

import (
	"context"

	"github.com/go-logr/logr"

	"ROOT/gc"
	"ROOT/hostlocal"
	"ROOT/podsource"
)

func embed(ctx context.Context, source podsource.Source, log logr.Logger) error {
`,
		after: "return nil\n}\n\nvar _ = embed\n",
	},
	{
		begins: "source := podsource.AnswerFunc(", file: "source.go",
		before: `package outside

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"ROOT/podsource"
)

func source(listSandboxes func(context.Context) ([]struct{ Namespace, Name, PodUID, ID string }, error)) podsource.Source {
`,
		after: "return source\n}\n\nvar _ = source\n",
	},
	{
		begins: "pods, err := kubelet.New(", file: "kubernetes.go",
		before: `package outside

import (
	"os"

	"ROOT/podsource"
	"ROOT/podsource/cnicache"
	"ROOT/podsource/cri"
	"ROOT/podsource/kube"
	"ROOT/podsource/kubelet"
	"ROOT/podsource/netns"
)

func kubernetes(client kube.Client) (podsource.Source, error) {
`,
		dots:  slices.Repeat([]string{"if err != nil {\nreturn nil, err\n}\n"}, 5),
		after: "return source, nil\n}\n\nvar _ = kubernetes\n",
	},
	{
		begins: "kernel, err := netns.New(", file: "kernel.go",
		before: `package outside

import (
	"time"

	"ROOT/gc"
	"ROOT/hostlocal"
	"ROOT/podsource"
	"ROOT/podsource/cnicache"
	"ROOT/podsource/netns"
)

func kernel() (*gc.Reconciler, error) {
`,
		dots:  []string{"if err != nil {\nreturn nil, err\n}\n", "if err != nil {\nreturn nil, err\n}\n"},
		after: "return reconciler, err\n}\n\nvar _ = kernel\n",
	},
	{
		begins: "dir := t.TempDir()", file: "outside_test.go",
		before: `package outside

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ROOT/gc"
	"ROOT/hostlocal"
	"ROOT/podsource"
)

func TestOutside(t *testing.T) {
`,
		dots: []string{"if err != nil {\nt.Fatal(err)\n}\n"},
		after: `if err != nil || report.Counts()[gc.Released] != 1 {
	t.Errorf("got %v, %v", report, err)
}
}
`,
	},
	{
		begins: "record, err := checkpoint.Open(", file: "server.go",
		before: `package outside

import (
	"context"
	"errors"
	"io/fs"

	"github.com/go-logr/logr"

	"ROOT/gc"
	"ROOT/hostlocal"
	"ROOT/podsource"
	"ROOT/podsource/checkpoint"
)

func serve(ctx context.Context, log logr.Logger, path string, networks []string, store *hostlocal.Store, runtime podsource.Source,
	attachmentsOf func(podsource.Pod) ([]checkpoint.Entry, error), listen func()) error {
`,
		dots:  []string{"if err != nil {\nreturn err\n}\n", "_, _ = gone, err\n", "_, _ = report, err\n"},
		after: "return nil\n}\n\nvar _ = serve\n",
	},
}

// snippets returns a trial for each Go block of the documents.
func (h *rehearsal) snippets() ([]trial, error) {
	var all []trial
	var text strings.Builder
	for _, name := range documents {
		content, err := os.ReadFile(filepath.Join(h.root, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		text.Write(content)
	}
	known := make(map[string]bool)
	for _, block := range goBlocks(text.String()) {
		first, _, _ := strings.Cut(block, "\n")
		name, content, err := frameOf(block, h.root1().path)
		if err != nil {
			return nil, err
		}
		if known[name] {
			return nil, fmt.Errorf("the documents have two Go blocks that begin with %q", first)
		}
		known[name] = true
		all = append(all, trial{"Go block: " + first[:min(len(first), 30)], func(ctx context.Context, dir string) (string, error) {
			var requires []string
			for _, m := range h.modules {
				if m.released && strings.Contains(content, `"`+m.path) {
					requires = append(requires, h.require(m))
				}
			}
			if err := write(dir, h.root1().file.Go.Version, requires, map[string]string{name: content}); err != nil {
				return "", err
			}
			if err := h.buildAndVet(ctx, dir); err != nil || !strings.HasSuffix(name, "_test.go") {
				return "", err
			}
			_, err := h.goCommand(ctx, dir, "test", "./...")
			return "a test, and passes", err
		}})
	}
	if len(all) != len(frames) {
		return nil, fmt.Errorf("the documents have %d Go blocks, and frames has %d: update frames", len(all), len(frames))
	}
	return all, nil
}

// goBlocks returns the fenced blocks of Go in a Markdown text.
func goBlocks(text string) (blocks []string) {
	var block strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		switch {
		case inside && strings.TrimSpace(line) == "```":
			blocks, inside = append(blocks, block.String()), false
			block.Reset()
		case inside:
			block.WriteString(line)
		case strings.TrimSpace(line) == "```go":
			inside = true
		}
	}
	return blocks
}

// frameOf returns the file that a block makes, and its name.
func frameOf(block, root string) (name, content string, err error) {
	for _, f := range frames {
		if !strings.HasPrefix(block, f.begins) {
			continue
		}
		text, dots := strings.ReplaceAll(f.before, "ROOT", root), f.dots
		for line := range strings.Lines(block) {
			if strings.TrimSpace(line) != "..." {
				text += line
				continue
			}
			if len(dots) == 0 {
				return "", "", errors.New("the Go block has more ellipses than its frame: it begins with " + f.begins)
			}
			text, dots = text+dots[0], dots[1:]
		}
		if len(dots) > 0 {
			return "", "", errors.New("the Go block has fewer ellipses than its frame: it begins with " + f.begins)
		}
		return f.file, text + f.after, nil
	}
	first, _, _ := strings.Cut(block, "\n")
	return "", "", fmt.Errorf("no frame for the Go block that begins with %q: add one to frames", first)
}
