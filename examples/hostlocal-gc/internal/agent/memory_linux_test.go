// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
)

// The memory that the DaemonSet allows is enough for 65,536 addresses, also while ten clients read
// the report. The race detector would take several times as much, so the agent is built without it.
func TestMemory(t *testing.T) {
	manifest := read(t, filepath.Join("..", "..", "deploy", "daemonset.yaml"))
	limit, _ := strconv.Atoi(match(t, `limits:\n +memory: (\d+)Mi\n`, manifest))
	n := filepath.Join(t.TempDir(), "n")
	put(t, filepath.Join(n, "10.0.0.0"), sandbox("0")+"\r\neth0")
	for i := 1; i < 1<<16; i++ {
		if err := os.WriteFile(fmt.Sprintf("%s/10.0.%d.%d", n, i/256, i%256), []byte(sandbox(strconv.Itoa(i))+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pods := filepath.Join(t.TempDir(), "pods.json")
	writePods(t, pods, pod{ContainerIDs: []string{"0"}})
	plain := filepath.Join(t.TempDir(), "hostlocal-gc")
	if out, err := exec.Command("go", "build", "-race=false", "-buildvcs=false", "-o", plain, "../..").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(plain, "agent", "--listen", "127.0.0.1:0", "--data-dir", filepath.Dir(n), "--network", "n", "--source", "file:"+pods,
		"--memory", filepath.Join(t.TempDir(), "memory"))
	cmd.Env = environment("GOMEMLIMIT=" + match(t, `GOMEMLIMIT\n +value: (\w+)\n`, manifest))
	p := startCommand(t, cmd)
	p.untilReady()
	url := "http://" + p.address() + debugPath
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var clients sync.WaitGroup
	for range 10 {
		clients.Go(func() {
			for size := int64(0); size < 300<<16; { // a busy machine may not write it in time
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
				if err == nil {
					size, err = length(r)
				}
				if ctx.Err() != nil {
					t.Errorf("a client did not get the report: %v", err)
					return
				}
			}
		})
	}
	clients.Wait()
	most, _ := strconv.Atoi(match(t, `VmHWM:\s+(\d+) kB\n`, read(t, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))))
	if most == 0 || most >= limit<<10 {
		t.Errorf("the agent took %d KiB, and the limit is %d MiB", most, limit)
	}
	fmt.Printf("The agent with 65,536 addresses took %d MiB at most\n", most>>10) // information only
	p.terminate()
}

// length returns the length of the answer to a request.
func length(r *http.Request) (int64, error) {
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = got.Body.Close() }()
	return io.Copy(io.Discard, got.Body)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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
