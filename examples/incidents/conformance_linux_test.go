// SPDX-License-Identifier: Apache-2.0

package incidents

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

var collectorFlag = flag.String("collector", "", "a command to try, such as 'collect --dir {dir} --live {pods.json}'")

// network is the network of every case.
const network = "podnet"

// Outcomes of a case, worst first.
const (
	loses    = "**loses a live address**"
	destroys = "**removes what is no reservation**"
	writes   = "**writes into the directory**"
	blocks   = "**does not end**"
	acts     = "**releases all the same**"
	silent   = "releases nothing, and does not say why"
	keeps    = "keeps the leak"
	fails    = "fails"
	holds    = "holds"
)

// TestConformance runs the hazards that need only a directory and a list of pods against this
// project's collector and four other designs. The table shows the outcomes.
func TestConformance(t *testing.T) {
	if *collectorFlag != "" {
		return // TestCollector runs instead
	}
	all, cases := collectors(t), hazards()
	outcomes := make([][]string, len(cases))
	t.Run("each", func(t *testing.T) { // returns when all have ended
		for i, c := range cases {
			outcomes[i] = make([]string, len(all))
			for j, one := range all {
				t.Run(c.hazard+" "+c.what+"/"+one.name, func(t *testing.T) {
					t.Parallel()
					outcome, said := c.try(t, one, limit)
					outcomes[i][j] = outcome
					t.Logf("%s\n%s", outcome, said)
					if one.name == ours && outcome != holds {
						t.Errorf("ours does not hold: %s", outcome)
					}
				})
			}
		}
	})
	t.Run("the list that conformance.md shows", func(t *testing.T) {
		plain := cases[0]
		plain.pods = jsonBlock(t, conformanceFile)
		if outcome, said := plain.try(t, all[len(all)-1], limit); outcome != holds {
			t.Errorf("outcome of %s: %s\n%s", ours, outcome, said)
		}
	})
	if slices.ContainsFunc(outcomes, func(row []string) bool { return len(row) == 0 || slices.Contains(row, "") }) {
		t.Log("-run has chosen a part: the table is not compared")
		return
	}
	var rows []string
	for i, c := range cases {
		rows = append(rows, fmt.Sprintf("| %s | %s | %s |", c.hazard, c.what, strings.Join(outcomes[i], " | ")))
	}
	for i, one := range all {
		fails := slices.ContainsFunc(outcomes, func(row []string) bool { return row[i] != holds })
		if one.name != ours && !fails {
			t.Errorf("%s holds everywhere: the cases do not distinguish it", one.name)
		}
	}
	compareConformance(t, rows)
}

// jsonBlock returns the first block of JSON in a file.
func jsonBlock(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```json\n")
	block, _, ok := strings.Cut(block, "```")
	if !ok {
		t.Fatalf("%s has no block of JSON", file)
	}
	return block
}

// TestCollector runs the command of -collector, and fails if any case does not hold.
func TestCollector(t *testing.T) {
	if *collectorFlag == "" {
		return
	}
	if !strings.Contains(*collectorFlag, "{dir}") {
		t.Fatalf("-collector %q: it must contain {dir}, the data directory", *collectorFlag)
	}
	one := collector{name: "yours", command: strings.Fields(*collectorFlag)}
	for _, c := range hazards() {
		t.Run(c.hazard+" "+c.what, func(t *testing.T) {
			t.Parallel()
			outcome, said := c.try(t, one, limit)
			t.Log(outcome)
			if outcome != holds {
				t.Errorf("it does not hold:\n%s", said)
			}
		})
	}
}

// limit is the time after which a collector is killed.
const limit = 25 * time.Second

// A collector is a command. In its arguments {dir} is host-local's data directory and {pods.json}
// the list of pods. Exit status 0 means done, and any other means refused. Death by a signal is
// neither.
type collector struct {
	name    string
	command []string
	env     []string
}

// run runs the collector. It kills a collector that exceeds the limit, which is an error. So is a
// child that keeps the output open.
func (c collector) run(t *testing.T, dir, pods string, limit time.Duration) (said string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	args := slices.Clone(c.command)
	for i := range args {
		args[i] = strings.ReplaceAll(strings.ReplaceAll(args[i], "{dir}", dir), "{pods.json}", pods)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // kill a script's children, too
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = limit / 10
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // also after success, in case that children are left
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		err = errLate
	case errors.Is(err, exec.ErrWaitDelay):
		err = fmt.Errorf("%w: %w", errLate, err)
	case err != nil && !errors.As(err, &exit):
		t.Fatalf("%v: %v", cmd, err)
	}
	return string(out), err
}

// errLate is the error of a collector that exceeded the limit.
var errLate = errors.New("it does not end")

// refused reports whether a collector exited with an error status.
func refused(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Exited()
}

// try makes the case's directory, runs a collector on it, and judges the result. said also lists
// the changed files.
func (h hazard) try(t *testing.T, c collector, limit time.Duration) (outcome, said string) {
	t.Helper()
	dir := t.TempDir()
	data := filepath.Join(dir, "networks")
	h.lay(t, data)
	pods := filepath.Join(dir, "pods.json")
	if err := os.WriteFile(pods, []byte(h.pods), 0o600); err != nil {
		t.Fatal(err)
	}
	dateBack(t, pods, h.listAge)
	if h.locked {
		defer lock(t, filepath.Join(data, network))()
	}
	before := contents(t, data)
	said, err := c.run(t, data, pods, limit)
	after := contents(t, data)
	gone := func(path string) bool { return before[path] != after[path] }
	made := func(path string) bool {
		_, was := before[path]
		return !was && filepath.Base(path) != "lock" // the plugin creates it, too
	}
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if is, ok := after[path]; gone(path) && ok {
			said = fmt.Sprintf("%s: was %q, is %q\n", path, before[path], is) + said
		} else if gone(path) {
			said = fmt.Sprintf("%s: was %q, is gone\n", path, before[path]) + said
		}
	}
	for path := range after {
		if made(path) {
			said = fmt.Sprintf("%s: is new, %q\n", path, after[path]) + said
		}
	}
	if err != nil {
		said = fmt.Sprintf("%v\n", err) + said
	}
	switch {
	case slices.ContainsFunc(h.keep, gone) && h.refuse:
		return acts, said
	case slices.ContainsFunc(h.keep, gone):
		return loses, said
	case slices.ContainsFunc(h.others, gone):
		return destroys, said
	case slices.ContainsFunc(slices.Collect(maps.Keys(after)), made):
		return writes, said
	case errors.Is(err, errLate):
		return blocks, said
	case h.refuse && err == nil:
		return silent, said
	case h.refuse && refused(err):
		return holds, said
	case err != nil:
		return fails, said
	case slices.ContainsFunc(h.release, func(path string) bool { return !gone(path) }):
		return keeps, said
	}
	return holds, said
}

// contents returns the files below a directory by path, with their content or type. For the lock it
// is the inode: a replaced lock locks nobody out.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return all
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		all[name] = "mode " + d.Type().String()
		if err == nil && d.Type().IsRegular() {
			var content []byte
			content, err = os.ReadFile(path)
			all[name] = "content " + string(content)
		}
		if err == nil && d.Name() == "lock" {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				all[name] = fmt.Sprint("inode ", info.Sys().(*syscall.Stat_t).Ino)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// lock takes the plugin's lock of a network.
func lock(t *testing.T, dir string) (unlock func()) {
	t.Helper()
	l, err := disk.NewFileLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Lock(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(l.Unlock(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}
