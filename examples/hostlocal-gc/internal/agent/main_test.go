// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// One binary serves the whole test process: that of the command's tests, which is the command on a
// node that has been up for a year. TestMain makes its directory, and the first test that starts
// the agent builds it.
var (
	binDir string
	build  = sync.OnceValues(buildAgent)
)

// TestMain runs the tests on a node that has been up for a year.
func TestMain(m *testing.M) {
	const up = 365 * 24 * time.Hour
	gctest.Uptime(nil, up)
	diagnose.Booted = func() time.Time { return time.Now().Add(-up) }
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "agent-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binDir = dir
	return plugintest.Main(m)
}

// built returns the path of the built command.
func built(t *testing.T) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func buildAgent() (string, error) {
	path := filepath.Join(binDir, "hostlocal-gc")
	info, _ := debug.ReadBuildInfo()
	race := "-race=" + strconv.FormatBool(slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})) // as this binary
	if out, err := exec.Command("go", "test", "-c", race, "-o", path, filepath.Join("..", "..")).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the agent: %w\n%s", err, out)
	}
	return path, nil
}
