// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

const (
	repository = "../../.."
	dockerfile = "examples/hostlocal-gc/deploy/Dockerfile" // relative to the root
	tagged     = "v0.9.8"                                  // the tag of the copy
)

// A recipe is the Dockerfile as BuildKit parses it.
type recipe struct {
	build, image instructions.Stage
}

func readRecipe() (recipe, error) {
	text, err := os.ReadFile(filepath.Join(repository, dockerfile))
	if err != nil {
		return recipe{}, err
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return recipe{}, err
	}
	stages, global, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return recipe{}, err
	}
	if len(parsed.Warnings) != 0 || len(global) != 0 || len(stages) != 2 {
		return recipe{}, fmt.Errorf("want a stage that builds and one that is left: warnings %v, global arguments %v, %d stages",
			parsed.Warnings, global, len(stages))
	}
	return recipe{stages[0], stages[1]}, nil
}

// The image contains the command and nothing else.
func TestImage(t *testing.T) {
	r, err := readRecipe()
	if err != nil {
		t.Fatal(err)
	}
	// The compiler runs on the builder's platform, whatever the target is.
	if r.build.Platform != "$BUILDPLATFORM" || r.image.Platform != "" {
		t.Errorf("the stages are for %q and %q", r.build.Platform, r.image.Platform)
	}
	goVersion, ok := strings.CutPrefix(r.build.BaseName, "docker.io/library/golang:")
	if mod, err := os.ReadFile(filepath.Join(repository, "examples/go.mod")); err != nil || !ok ||
		!strings.Contains(string(mod), "\ngo "+goVersion+".") {
		t.Errorf("it is built in %s; the go line of examples/go.mod is another: %v", r.build.BaseName, err)
	}
	if r.image.BaseName != "scratch" {
		t.Errorf("the image is made from %s", r.image.BaseName)
	}
	var got []string
	for _, c := range r.image.Commands {
		got = append(got, fmt.Sprint(c))
		if e, ok := c.(*instructions.EntrypointCommand); ok && e.PrependShell {
			t.Error("the entry point needs a shell, and there is none")
		}
	}
	// The command is in a directory of PATH, so that kubectl exec needs no path. There is no USER:
	// the reservations and the sockets belong to root.
	want := []string{
		"COPY --from=build /build/hostlocal-gc /usr/local/bin/hostlocal-gc",
		`ENTRYPOINT ["/usr/local/bin/hostlocal-gc"]`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the image is made of (-want +got):\n%s", diff)
	}
	if r.build.Name != "build" {
		t.Errorf("the build stage is called %q", r.build.Name)
	}
}

// Files that are not sent to the builder must be files that git ignores, or the version says that
// the tree was modified.
func TestIgnoredByGit(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, dockerfile+".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if out, err := exec.CommandContext(t.Context(), "git", "-C", repository, "check-ignore", "--no-index", line+"/").CombinedOutput(); err != nil {
			t.Errorf("git does not ignore %q: %v %s", line, err, out)
		}
	}
}

// The build stage makes the command for each architecture, with a version.
func TestBuild(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		binary, err := makeCommand(arch)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "go", "version", "-m", binary).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"\tGOARCH=" + arch + "\n", "\tGOOS=linux\n", "\tCGO_ENABLED=0\n"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: it is not built with %q:\n%s", arch, strings.TrimSpace(want), out)
			}
		}
		if runtime.GOOS+runtime.GOARCH != "linux"+arch {
			continue
		}
		got, err := exec.CommandContext(t.Context(), binary, "--version").Output()
		if want := "hostlocal-gc version " + tagged + " "; err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("--version: %q, %v; want %q", got, err, want)
		}
	}
}

// If a builder is installed, it builds the image, and the image runs.
func TestBuilder(t *testing.T) {
	found := ""
	for _, builder := range []string{"docker", "podman"} {
		if exec.CommandContext(t.Context(), builder, "info", "--format", "{{.ID}}").Run() == nil && found == "" {
			found = builder
		}
	}
	if found == "" {
		return // the commands of the build stage are run by TestBuild
	}
	dir := t.TempDir()
	if err := copyRepository(dir); err != nil {
		t.Fatal(err)
	}
	const image = "hostlocal-gc-deploytest"
	run := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), found, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", found, args, err, out)
		}
		return string(out)
	}
	run("build", "-t", image, "-f", filepath.Join(dir, dockerfile), dir)
	defer run("rmi", image)
	if got := run("run", "--rm", image, "--version"); !strings.Contains(got, tagged) {
		t.Errorf("--version of the image: %s", got)
	}
}

// built holds the commands that the build stage made, by architecture.
var built struct {
	mu  sync.Mutex
	dir string
	all map[string]string
}

// makeCommand returns the path of the command in the image for an architecture. It runs the steps
// of the build stage in a copy of the repository.
func makeCommand(arch string) (string, error) {
	built.mu.Lock()
	defer built.mu.Unlock()
	if path, ok := built.all[arch]; ok {
		return path, nil
	}
	r, err := readRecipe()
	if err != nil {
		return "", err
	}
	path, err := r.make(filepath.Join(built.dir, arch), arch)
	if err == nil {
		built.all[arch] = path
	}
	return path, err
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "deploytest")
	if err != nil {
		panic(err)
	}
	built.dir, built.all = dir, make(map[string]string)
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// make runs the steps of the build stage below root, and returns the path of the file that is
// copied into the image.
func (r recipe) make(root, arch string) (string, error) {
	given := map[string]string{"TARGETOS": "linux", "TARGETARCH": arch}
	// The toolchain in the image of Go is no newer than the image's tag.
	env := []string{"GOTOOLCHAIN=local"}
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); name != "GOFLAGS" && name != "GOWORK" && name != "CGO_ENABLED" && !strings.HasPrefix(name, "TARGET") {
			env = append(env, e)
		}
	}
	dir := "/"
	for _, c := range r.build.Commands {
		switch c := c.(type) {
		case *instructions.WorkdirCommand:
			dir = path.Join("/", c.Path)
		case *instructions.CopyCommand:
			if len(c.SourcePaths) != 1 || c.SourcePaths[0] != "." || c.DestPath != "." {
				return "", fmt.Errorf("this test does not know %v", c)
			}
			if err := copyRepository(filepath.Join(root, dir)); err != nil {
				return "", err
			}
		case *instructions.ArgCommand:
			for _, a := range c.Args {
				if _, ok := given[a.Key]; !ok || a.Value != nil {
					return "", fmt.Errorf("this test does not know the argument %s", a.Key)
				}
				env = append(env, a.Key+"="+given[a.Key])
			}
		case *instructions.EnvCommand:
			for _, e := range c.Env {
				env = append(env, e.Key+"="+e.Value)
			}
		case *instructions.RunCommand:
			cmd := exec.Command("sh", "-c", strings.Join(c.CmdLine, " "))
			cmd.Dir, cmd.Env = filepath.Join(root, dir), env
			if out, err := cmd.CombinedOutput(); err != nil || !c.PrependShell {
				return "", fmt.Errorf("%v: %w\n%s", c, err, out)
			}
		default:
			return "", fmt.Errorf("this test does not know %v", c)
		}
	}
	for _, c := range r.image.Commands {
		if c, ok := c.(*instructions.CopyCommand); ok {
			return filepath.Join(root, c.SourcePaths[0]), nil
		}
	}
	return "", errors.New("nothing is copied into the image")
}

// copyRepository makes a repository in dir with the files that git tracks or would add, in one
// tagged commit.
func copyRepository(dir string) error {
	out, err := exec.Command("git", "-C", repository, "ls-files", "-co", "--exclude-standard", "-z").Output()
	if err != nil {
		return fmt.Errorf("asking git for its files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed, not yet committed
		}
		to := filepath.Join(dir, name)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o644)); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"init", "-q"},
		{"add", "-A"},
		{"-c", "user.name=deploytest", "-c", "user.email=deploytest@example.com", "-c", "commit.gpgsign=false", "commit", "-qm", "copy"},
		{"tag", "examples/" + tagged},
	} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("git %q: %w\n%s", args, err, out)
		}
	}
	return nil
}
