// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bufio"
	"debug/buildinfo"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// copied makes a repository with the files that git tracks or would add, in one tagged commit, and removes what is not
// sent to the builder. If git tracks such a file, the version says that the tree was modified.
const copied = `git init -q .
git --git-dir=.git --work-tree="$$REPOSITORY" add -A
git -c user.name=test -c user.email=test@example.com -c commit.gpgsign=false commit -qm copy
git tag examples/v0.9.8
git reset -q --hard
rm -rf $$(cat examples/hostlocal-gc/deploy/Dockerfile.dockerignore)`

// The build stage makes the command for each architecture, with the version of the tag. The image contains the command
// in a directory of PATH, and nothing else: no user, since reservations and sockets belong to root.
func TestImage(t *testing.T) {
	repository, err := filepath.Abs("../../..")
	mod, err2 := os.ReadFile("../../go.mod")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	goVersion := submatches(`(?m)^go (\d+\.\d+)`, string(mod))[0]
	// A shell runs the steps. Others than these are unknown commands.
	script := read(t, "Dockerfile")
	for _, r := range [][2]string{
		{`(?m)\\\n|^#.*\n`, ""},
		{`FROM --platform=\$BUILDPLATFORM docker.io/library/golang:` + goVersion + ` AS build\n`, ""}, // the compiler is the builder's
		{`(?m)^WORKDIR (.*)`, `mkdir -p "$$ROOT$1"; cd "$$ROOT$1"`},
		{`COPY \. \.`, copied},
		{`ARG TARGETOS TARGETARCH`, ""},
		{`(?m)^ENV `, "export "},
		{`(?m)^RUN (--mount=\S+ )*`, ""},
	} {
		script = regexp.MustCompile(r[0]).ReplaceAllString(script, r[1])
	}
	script, image, _ := strings.Cut(script, "FROM scratch\n")
	want := "COPY --from=build /build/hostlocal-gc /usr/local/bin/hostlocal-gc\nENTRYPOINT [\"/usr/local/bin/hostlocal-gc\"]\n"
	if diff := cmp.Diff(want, image); diff != "" {
		t.Errorf("what the image is made of (-want +got):\n%s", diff)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		root := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
		// The toolchain in the image is no newer than the image's tag.
		cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOFLAGS=", "GOWORK=", "CGO_ENABLED=",
			"TARGETOS=linux", "TARGETARCH="+arch, "ROOT="+root, "REPOSITORY="+repository)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s\n%v\n%s", script, err, out)
		}
		binary := filepath.Join(root, "build/hostlocal-gc")
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"/examples\tv0.9.8\t", "\tGOOS=linux\n", "\tGOARCH=" + arch + "\n", "\tCGO_ENABLED=0\n"} {
			if !strings.Contains(info.String(), want) {
				t.Errorf("%s: it is not built with %q:\n%s", arch, want, info)
			}
		}
		if arch == runtime.GOARCH {
			checkVariables(t, binary)
			checkMetrics(t, binary)
		}
	}
}

// checkVariables asserts that each variable in the manifests and their texts belongs to a flag of the agent, which
// refuses others, and that the probes use its default address.
func checkVariables(t *testing.T, binary string) {
	t.Helper()
	help, err := exec.CommandContext(t.Context(), binary, "agent", "--help").Output()
	if err != nil || !regexp.MustCompile(`\(default\s+"127.0.0.1:9776"\)`).Match(help) {
		t.Fatalf("the agent does not listen at 127.0.0.1:9776 by default: %v\n%s", err, help)
	}
	known := strings.ToUpper(strings.ReplaceAll(strings.Join(submatches(`(?m)^ +(?:-\w, )?--([\w-]+)`, string(help)), " "), "-", "_"))
	err = filepath.WalkDir(manifests, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, variable := range submatches(`HOSTLOCAL_GC_(\w+)`, string(text)) {
			if !slices.Contains(strings.Fields(known), variable) {
				t.Errorf("%s: the agent has no flag for HOSTLOCAL_GC_%s", path, variable)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkMetrics asserts that the agent serves the metrics of the scenarios, and that their names follow the conventions.
func checkMetrics(t *testing.T, binary string) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), binary, "agent")
	cmd.Env = []string{
		"HOSTLOCAL_GC_DATA_DIR=" + dir, "HOSTLOCAL_GC_NETWORK=podnet storage", "HOSTLOCAL_GC_SOURCE=file:" + dir + "/pods.json",
		"HOSTLOCAL_GC_LISTEN=127.0.0.1:0", "HOSTLOCAL_GC_METRICS_LISTEN=127.0.0.1:0",
	}
	log, err := cmd.StderrPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	var address []string
	for lines := bufio.NewScanner(log); address == nil && lines.Scan(); {
		address = submatches(`msg="Serving metrics" address=(\S+)`, lines.Text())
	}
	response, err := http.Get("http://" + strings.Join(address, "") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`build_info{goversion="\S+",version="v0.9.8"} 1`, "dry_run 0", `passes_total{result="ok"} \d`} {
		if !regexp.MustCompile("(?m)^hostlocal_gc_" + want + "$").Match(text) {
			t.Errorf("the agent does not serve %s:\n%s", want, text)
		}
	}
	if problems, err := promlint.New(strings.NewReader(string(text))).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
