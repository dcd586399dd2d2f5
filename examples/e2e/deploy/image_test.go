// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"debug/buildinfo"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		{`ARG TARGETOS TARGETARCH`, `export TARGETOS=linux TARGETARCH="$$ARCH"`},
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
		cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOFLAGS=", "GOWORK=", "CGO_ENABLED=", "TARGETOS=", "TARGETARCH=",
			"ARCH="+arch, "ROOT="+root, "REPOSITORY="+repository)
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
			checkAgent(t, binary)
		}
	}
}

// checkAgent asserts that each variable in the manifests and their texts belongs to a flag of the agent, which refuses
// others, and that the probes use its default address.
func checkAgent(t *testing.T, binary string) {
	t.Helper()
	help, err := exec.CommandContext(t.Context(), binary, "agent", "--help").Output()
	if err != nil || !regexp.MustCompile(`\(default\s+"127.0.0.1:9776"\)`).Match(help) {
		t.Fatalf("the agent does not listen at 127.0.0.1:9776 by default: %v\n%s", err, help)
	}
	flags := submatches(`(?m)^ +(?:-\w, )?--([\w-]+)`, string(help))
	texts, err2 := exec.CommandContext(t.Context(), "grep", "-rhow", "HOSTLOCAL_GC_[A-Z_]*", manifests).Output()
	source, err3 := os.ReadFile(filepath.Join(manifests, "../internal/agent/metrics.go"))
	if err := errors.Join(err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"hostlocal_gc_build_info"`, `"version":`, `"hostlocal_gc_dry_run"`} { // used by scenarios
		if !strings.Contains(string(source), want) {
			t.Errorf("the agent has no %s among its metrics", want)
		}
	}
	for _, variable := range submatches(`HOSTLOCAL_GC_(\w+)`, string(texts)) {
		if !slices.Contains(flags, strings.ToLower(strings.ReplaceAll(variable, "_", "-"))) {
			t.Errorf("the agent has no flag for HOSTLOCAL_GC_%s", variable)
		}
	}
}
