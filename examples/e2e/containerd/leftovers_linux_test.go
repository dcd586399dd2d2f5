// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// dieEnv is the variable that says how a suite, started by a test, ends.
const dieEnv = "CONTAINERDTEST_DIE"

// caller is the process with which a suite ends.
const caller = -2

// halfway is printed by such a suite when its pods run.
const halfway = "halfway there"

// TestEndsHalfway does nothing except in a suite that TestNothingIsLeftBehind starts.
func TestEndsHalfway(t *testing.T) {
	how := os.Getenv(dieEnv)
	if how == "" {
		return
	}
	n := newNode(t, current())
	n.run("live")
	n.runHeld("starting")
	fmt.Println(halfway)
	switch how {
	case "fail":
		t.Fatal("told to fail")
	case "panic":
		panic("told to panic")
	case "exit":
		os.Exit(7)
	}
	<-t.Context().Done() // the test kills this process
}

// A suite ends while pods run and an ADD is in flight, by itself or because one of its four
// processes was killed. No process, mount, network namespace or control group of it may be left.
func TestNothingIsLeftBehind(t *testing.T) {
	need(t)
	cases := []struct {
		how    string
		kill   int // the process to kill: 0 is outside, 3 the tests; -1 none, -2 the caller
		reason string
	}{
		{"fail", -1, "the cleanup of the test ends the pods"},
		{"panic", -1, "the first process ends after the tests, and with it the namespaces"},
		{"exit", -1, "the same, without a message"},
		{"outside is killed", 0, "the supervisor notices that the pipe is closed"},
		{"supervisor is killed", 1, "the first process gets its death signal, and outside removes the control groups"},
		{"first is killed", 2, "with process 1 the namespaces end"},
		{"tests are killed", 3, "the first process ends after the tests"},
		{"caller is killed", caller, "outside watches it, since the command go is between them"},
	}
	for _, c := range cases {
		t.Run(c.how, func(t *testing.T) {
			before := surroundings(t)
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestEndsHalfway$", "-test.v")
			cmd.Env = append(os.Environ(), roleEnv+"=", dieEnv+"="+c.how) // the last value of a name counts
			victim := exec.Command("/bin/sleep", "1000")                  // the caller
			if c.kill == caller {
				if err := victim.Start(); err != nil {
					t.Fatal(err)
				}
				cmd.Env = append(cmd.Env, fmt.Sprint(callerEnv, "=", victim.Process.Pid))
			}
			var stderr strings.Builder
			cmd.Stderr = &stderr
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			said := bufio.NewReader(stdout)
			text := readUntil(said, halfway)
			if during := surroundings(t); c.kill >= 0 && during == before {
				t.Errorf("while its pods run nothing differs from before: %+v", during)
			}
			if c.kill == caller {
				if err := errors.Join(victim.Process.Kill(), ignoreExit(victim.Wait())); err != nil {
					t.Fatal(err)
				}
			}
			if c.kill >= 0 {
				pid := descendant(t, cmd.Process.Pid, c.kill)
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			ended := make(chan struct{}) // when the last process has closed stdout, mostly the supervisor
			go func() {
				defer close(ended)
				_, _ = io.Copy(io.Discard, said)
			}()
			select {
			case <-ended:
			case <-time.After(maxWait):
				left, err := others()
				t.Errorf("processes %v are left (%s): %v, %v", left, c.reason, err, killAll())
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the suite succeeded")
			}
			if !strings.Contains(text, halfway) {
				t.Fatalf("the pods of the suite did not run: %s\n%s", text, &stderr)
			}
			awaitAlone(t)
			same(t, "surroundings", c.reason, before, surroundings(t))
		})
	}
}

// ignoreExit returns nil for the error of a process that ended with a status or by a signal.
func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// A surrounding has the mounts and network namespaces in the namespaces of this suite, which no
// other suite uses, and the control groups of suites that it starts.
type surrounding struct {
	Mounts, Namespaces, Groups string
}

func surroundings(t *testing.T) surrounding {
	t.Helper()
	var s surrounding
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	s.Mounts = string(info)
	seen := make(map[string]bool)
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if ns, err := os.Readlink(l); err == nil && !seen[ns] { // otherwise the process has just ended
			s.Namespaces, seen[ns] = s.Namespaces+ns+"\n", true
		}
	}
	s.Groups = strings.Join(cgroups(os.Getenv(cgroupEnv)+"-*"), "\n")
	return s
}

// readUntil reads to the first line that contains the text, or to the end.
func readUntil(r *bufio.Reader, line string) string {
	var text strings.Builder
	for !strings.Contains(text.String(), line) {
		more, err := r.ReadString('\n')
		text.WriteString(more)
		if err != nil {
			break
		}
	}
	return text.String()
}

// descendant returns the process of a suite that is the given number of generations below pid.
// All of them have the same arguments.
func descendant(t *testing.T, pid, generations int) int {
	t.Helper()
	for range generations {
		children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		if err != nil {
			t.Fatal(err)
		}
		below := 0
		for _, file := range children {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range strings.Fields(string(content)) {
				child, err := strconv.Atoi(text)
				if err == nil && slices.Equal(arguments(child), arguments(pid)) {
					below = child
				}
			}
		}
		if below == 0 {
			t.Fatalf("process %d of the suite has no child of the suite", pid)
		}
		pid = below
	}
	return pid
}

// awaitAlone waits until no processes are left in the namespaces except the first, this one and
// those in stay.
func awaitAlone(t *testing.T, stay ...int) {
	t.Helper()
	timeout := time.After(maxWait)
	for tick := time.Tick(10 * time.Millisecond); ; {
		left, err := others()
		if err != nil {
			t.Fatal(err)
		}
		left = slices.DeleteFunc(left, func(pid int) bool { return slices.Contains(stay, pid) })
		if len(left) == 0 {
			return
		}
		select {
		case <-timeout:
			t.Fatalf("processes %v were left behind", left)
		case <-tick:
		}
	}
}
