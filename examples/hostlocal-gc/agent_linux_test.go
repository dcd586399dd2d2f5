// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// startAgent starts an agent, waits until it is ready, and returns the address at which it serves.
func startAgent(t *testing.T, cmd *exec.Cmd) (address string) {
	t.Helper()
	log := new(cnitest.Log)
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the end of the test's context kills it
	cnitest.Until(t, "the agent is ready: "+cmd.String(), func() bool {
		if found := regexp.MustCompile(`msg="Serving HTTP" address=(\S+)`).FindStringSubmatch(log.String()); found != nil {
			address = found[1]
		}
		got, err := http.Get("http://" + address + "/readyz") //nolint:noctx // this machine's
		return err == nil && got.Body.Close() == nil && got.StatusCode == http.StatusOK
	})
	return address
}

// The trial run in the README works as printed.
func TestReadmeTrial(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, filepath.Join("deploy", "README.md")), "```sh\n")
	script, _, _ := strings.Cut(rest, "```")
	const gorun = "go run ./examples/hostlocal-gc agent "
	if strings.Count(script, gorun) != 1 {
		t.Fatalf("the first block of deploy/README.md runs the agent not once:\n%s", script)
	}
	dir := t.TempDir()
	cmd := command(t, ".")
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-ec", strings.Replace(script, gorun, "exec "+built+" agent --listen 127.0.0.1:0 ", 1)}
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	startAgent(t, cmd)
	left, err := filepath.Glob(filepath.Join(dir, "*", "networks", "podnet", "10.*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "10.244.1.2" {
		t.Errorf("left are %v, error %v", left, err)
	}
}

// The memory that the DaemonSet allows is enough for 65,536 addresses, also while ten clients read
// the report and two the page. The race detector would take several times as much, so the agent is built without it.
func TestMemory(t *testing.T) {
	manifest := read(t, filepath.Join("deploy", "daemonset.yaml"))
	limit, _ := strconv.Atoi(match(t, `limits:\n +memory: (\d+)Mi\n`, manifest))
	node := newNode(t)
	node.pods("pods.json", pod{ContainerIDs: []string{sandbox("0")}})
	for i := range 1 << 16 {
		cnitest.Reserve(t, filepath.Join(node.dir, "networks"), "n", fmt.Sprintf("10.0.%d.%d", i/256, i%256), sandbox(strconv.Itoa(i)), 0)
	}
	plain := filepath.Join(t.TempDir(), "hostlocal-gc")
	if out, err := exec.Command("go", "build", "-race=false", "-buildvcs=false", "-o", plain, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := command(t, node.dir, "agent", "--listen", "127.0.0.1:0", "--data-dir", "networks", "--network", "n", "--source", "file:pods.json",
		"--memory", filepath.Join(t.TempDir(), "memory"))
	cmd.Path = plain
	cmd.Env = append(cmd.Env, "GOMEMLIMIT="+match(t, `GOMEMLIMIT\n +value: (\w+)\n`, manifest))
	url := "http://" + startAgent(t, cmd) + "/debug/hostlocal-gc?format="
	slow := &http.Client{Timeout: 2 * time.Minute}
	var clients sync.WaitGroup
	for i := range 12 {
		format, whole := "json", int64(300<<16) // in bytes
		if i >= 10 {
			format, whole = "html", 64<<10
		}
		clients.Go(func() {
			for size := int64(0); size < whole; { // others are served, or a busy machine does not write it in time
				got, err := slow.Get(url + format) //nolint:noctx // with a timeout
				if err != nil {
					t.Errorf("a client did not get the report: %v", err)
					return
				}
				size, _ = io.Copy(io.Discard, got.Body) // an error ends it early
				_ = got.Body.Close()
			}
		})
	}
	clients.Wait()
	most, _ := strconv.Atoi(match(t, `VmHWM:\s+(\d+) kB\n`, read(t, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))))
	if most == 0 || most >= limit<<10 {
		t.Errorf("the agent took %d KiB, and the limit is %d MiB", most, limit)
	}
}

// match returns the first group of a match.
func match(t *testing.T, pattern, text string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("%s is not in\n%s", pattern, text)
	}
	return found[1]
}
