// SPDX-License-Identifier: Apache-2.0

package containerdtest

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

// dieEnv tells a suite that a test has started how to end.
const dieEnv = "CONTAINERDTEST_DIE"

// caller is the process that a suite was told to end with.
const caller = -2

// halfway is what such a suite prints when pods run.
const halfway = "halfway there"

// TestEndsHalfway runs in a suite that TestNothingIsLeftBehind starts, and not
// otherwise.
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
	<-t.Context().Done() // never: somebody is about to kill us
}

// A suite ends while pods run and an ADD is in flight, by itself or because one
// of its four processes was killed. Nothing of it may be left: no process, mount,
// network namespace or control group.
func TestNothingIsLeftBehind(t *testing.T) {
	need(t)
	cases := []struct {
		how    string
		kill   int // which process is killed: 0 is outside, 3 the tests; -1 none, -2 the caller
		reason string
	}{
		{"fail", -1, "the test's own clean-up ends the pods"},
		{"panic", -1, "the first process ends after the tests, and with it the namespaces"},
		{"exit", -1, "the same, without a word"},
		{"outside is killed", 0, "the guardian sees that the pipe is closed"},
		{"guardian is killed", 1, "the first process gets its death signal, and outside removes the control groups"},
		{"first is killed", 2, "with process 1 the namespaces end"},
		{"tests are killed", 3, "the first process ends after the tests"},
		{"caller is killed", caller, "outside watches it, since the command go is between them"},
	}
	for _, c := range cases {
		t.Run(c.how, func(t *testing.T) {
			before := surroundings(t)
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestEndsHalfway$", "-test.v")
			cmd.Env = append(os.Environ(), roleEnv+"=", dieEnv+"="+c.how) // the last of a name counts
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
				t.Errorf("halfway there it looks like before: %+v", during)
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
			ended := make(chan struct{}) // when the last one has closed it, the guardian mostly
			go func() {
				defer close(ended)
				_, _ = io.Copy(io.Discard, said)
			}()
			select {
			case <-ended:
			case <-time.After(patience):
				left, err := others()
				t.Errorf("%v live on (%s): %v, %v", left, c.reason, err, killAll())
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the suite ended well")
			}
			if !strings.Contains(text, halfway) {
				t.Fatalf("the suite did not get halfway: %s\n%s", text, &stderr)
			}
			awaitAlone(t)
			same(t, "surroundings", c.reason, before, surroundings(t))
		})
	}
}

// ignoreExit drops the error that a process was killed.
func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// A surrounding is what a suite might leave behind in the namespaces of this one,
// which has them for itself, and among the control groups, by its name.
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
		if ns, err := os.Readlink(l); err == nil && !seen[ns] { // else the process has just ended
			s.Namespaces, seen[ns] = s.Namespaces+ns+"\n", true
		}
	}
	s.Groups = strings.Join(cgroups(os.Getenv(cgroupEnv)+"-*"), "\n")
	return s
}

// readUntil returns what is said until a line has it, or until the end.
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

// descendant returns the process of a suite so many generations below the one
// outside. They all have the same arguments.
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
			t.Fatalf("process %d of the suite has no child that is one, too", pid)
		}
		pid = below
	}
	return pid
}

// awaitAlone waits until no process is left in the namespaces but the first, this
// one and those that may stay: whoever is about to end may take its time.
func awaitAlone(t *testing.T, stay ...int) {
	t.Helper()
	timeout := time.After(patience)
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
