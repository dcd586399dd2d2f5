// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// buildPlugin builds host-local at the version that gc/plugintest is bound to.
func buildPlugin(ctx context.Context, dir string) (string, error) {
	module, err := goTool(ctx, "", "list", "-f", "{{.Dir}}", "github.com/hostlocal-gc/hostlocal-gc/gc/plugintest")
	if err != nil {
		return "", fmt.Errorf("%w\nrun this in the repository, or give --plugin", err)
	}
	path := filepath.Join(dir, "host-local")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	_, err = goTool(ctx, module, "build", "-o", path, "github.com/containernetworking/plugins/plugins/ipam/host-local")
	return path, err
}

// goTool runs the go command, in a directory as if that were no part of a workspace.
func goTool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	if dir != "" {
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=")
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("building host-local: go %s: %w\n%s", args[0], err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// ranges are the plugin's, over all reservations; ADD gets its addresses from
// beyond them.
func ranges(dual bool) []plugintest.Range {
	out := []plugintest.Range{{Subnet: "10.64.0.0/14", Start: "10.67.0.1"}}
	if dual {
		out = append(out, plugintest.Range{Subnet: "fd00:10:64::/64", Start: "fd00:10:64::3:0:1"})
	}
	return out
}
