// SPDX-License-Identifier: Apache-2.0

package incidents

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
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

var collectorFlag = flag.String("collector", "", "a command to try, as in 'collect --dir {dir} --live {pods.json}'")

// network is the one that every case is about.
const network = "podnet"

// Outcomes of a case, from the worst.
const (
	loses    = "**loses a live address**"
	destroys = "**removes what is no reservation**"
	blocks   = "**does not end**"
	acts     = "**releases all the same**"
	silent   = "releases nothing, and does not say why"
	keeps    = "keeps the leak"
	fails    = "fails"
	holds    = "holds"
)

// TestConformance runs each hazard that takes no more than a directory and a list of pods against
// collectors of other designs, and ours. The table is what they did.
func TestConformance(t *testing.T) {
	if *collectorFlag != "" {
		return // it is another one that is tried
	}
	all := collectors(t)
	var rows []string
	for _, c := range hazards() {
		row := fmt.Sprintf("| %s | %s |", c.hazard, c.what)
		for _, one := range all {
			outcome, said := c.try(t, one)
			row += " " + outcome + " |"
			t.Logf("%s, %s: %s\n%s", c.hazard, one.name, outcome, said)
			if one.name == ours && outcome != holds {
				t.Errorf("hazard %s (%s): ours %s\n%s", c.hazard, c.what, outcome, said)
			}
		}
		rows = append(rows, row)
	}
	for i, one := range all {
		worst := slices.ContainsFunc(rows, func(row string) bool { return strings.Split(row, " | ")[2+i] != holds })
		if one.name != ours && !worst {
			t.Errorf("%s holds everywhere: the cases tell nothing", one.name)
		}
	}
	compareConformance(t, rows)
}

// TestCollector tries the command of -collector, and fails where it does not hold.
func TestCollector(t *testing.T) {
	if *collectorFlag == "" {
		return
	}
	one := collector{name: "yours", command: strings.Fields(*collectorFlag)}
	for _, c := range hazards() {
		outcome, said := c.try(t, one)
		if outcome != holds {
			t.Errorf("hazard %s (%s): %s\n%s", c.hazard, c.what, outcome, said)
			continue
		}
		t.Logf("hazard %s (%s): %s", c.hazard, c.what, outcome)
	}
}

// A collector is a command. In its arguments {dir} is host-local's data directory and {pods.json} the
// list of pods. Exit status 0 says that it is done, any other that it has refused.
type collector struct {
	name    string
	command []string
	env     []string
}

// run runs it. What does not end within the time is killed.
func (c collector) run(t *testing.T, dir, pods string) (said string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	defer cancel()
	args := slices.Clone(c.command)
	for i := range args {
		args[i] = strings.ReplaceAll(strings.ReplaceAll(args[i], "{dir}", dir), "{pods.json}", pods)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a script's own children end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v: %v", cmd, err)
	}
	return string(out), err
}

// try makes the case's directory, runs a collector on it and judges what is left.
func (h hazard) try(t *testing.T, c collector) (outcome, said string) {
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
	said, err := c.run(t, data, pods)
	after := contents(t, data)
	gone := func(path string) bool { return before[path] != after[path] }
	switch {
	case slices.ContainsFunc(h.keep, gone) && h.refuse:
		return acts, said
	case slices.ContainsFunc(h.keep, gone):
		return loses, said
	case slices.ContainsFunc(h.others, gone):
		return destroys, said
	case errors.Is(err, context.DeadlineExceeded):
		return blocks, said
	case h.refuse && err == nil:
		return silent, said
	case h.refuse:
		return holds, said
	case err != nil:
		return fails, said
	case slices.ContainsFunc(h.release, func(path string) bool { return !gone(path) }):
		return keeps, said
	}
	return holds, said
}

// contents returns what is below a directory, by path: content, or what else it is.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		all[name] = d.Type().String()
		if err == nil && d.Type().IsRegular() {
			var content []byte
			content, err = os.ReadFile(path)
			all[name] = "content " + string(content)
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
