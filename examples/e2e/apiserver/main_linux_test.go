// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// cluster is the API server of all tests, since one takes seconds to start. Each test has its
// own node and namespace.
var cluster *server

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "servertest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // files left in the temporary directory are no failure
	begun := time.Now()
	if cluster, err = newServer(dir); err == nil {
		defer cluster.close()
		say("built in %v", since(begun))
		begun = time.Now()
		err = cluster.start()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "servertest: %v\n%s", err, cluster.logs())
		return 1
	}
	say("started in %v", since(begun))
	status := plugintest.Main(m)
	if status != 0 {
		fmt.Fprint(os.Stderr, cluster.logs())
	}
	return status
}

func since(t time.Time) time.Duration { return time.Since(t).Round(100 * time.Millisecond) }

// say prints the progress of steps that take long.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "servertest: "+format+"\n", args...)
}

// build builds a tool of go.mod into Go's build cache, and returns its path. The next run
// finds it there.
func build(tool string) (string, error) {
	cmd := exec.Command("go", "tool", "-n", tool)
	// GOFLAGS may ask for the race detector, which would take minutes more.
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=")
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ctx, done := context.WithCancel(context.Background())
	defer done()
	go progress(ctx, "building "+tool)
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("go tool -n %s: %w\n%s", tool, err, stderr.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// progress prints every 30 seconds what is being done.
func progress(ctx context.Context, what string) {
	begun, tick := time.Now(), time.NewTicker(30*time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			say("%s for %v", what, since(begun).Round(time.Second))
		}
	}
}
