// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

var collectorFlag = flag.String("collector", "", "a command to try, such as 'collect --dir {dir} --live {pods.json}'")

// TestConformance runs each hazard on this project's collector, or on that of -collector, which must hold, and
// on other designs, each of which must fail somewhere: else the cases would not distinguish it.
func TestConformance(t *testing.T) {
	cases, all := hazards(t), []collector{{yours, strings.Fields(*collectorFlag)}}
	if *collectorFlag == "" {
		all = collectors(t)
	} else if _, err := exec.LookPath(strings.Fields(*collectorFlag + " ''")[0]); err != nil {
		t.Fatalf("-collector %q: %v; give the full path of a script", *collectorFlag, err)
	}
	outcomes := make([][]string, len(cases))
	t.Run("each", func(t *testing.T) { // returns when all have ended
		for i, h := range cases {
			outcomes[i] = make([]string, len(all))
			for j, c := range all {
				t.Run(h.what+"/"+c.name, func(t *testing.T) {
					t.Parallel()
					outcome, said := h.try(t, c)
					if outcomes[i][j] = outcome; (c.name == ours || c.name == yours) && outcome != holds {
						t.Errorf("%s\n%s", outcome, said)
					}
				})
			}
		}
	})
	var table strings.Builder
	columns := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for j, c := range all {
		fmt.Fprintf(columns, "\t%s", c.name)
		if c.name != ours && c.name != yours && !slices.ContainsFunc(outcomes, func(row []string) bool { return row[j] != holds }) {
			t.Errorf("%s holds everywhere", c.name)
		}
	}
	for i, h := range cases {
		fmt.Fprintf(columns, "\n%s\t%s", h.what, strings.Join(outcomes[i], "\t"))
	}
	_ = columns.Flush() // to memory
	t.Logf("\n%s", table.String())
}

func TestMain(m *testing.M) {
	if design := os.Getenv(designEnv); design != "" {
		if err := collect(design, os.Args[1], os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	_ = flag.Set("test.parallel", "8") // a collector that hangs only waits
	os.Exit(plugintest.Main(m))
}

// collectors builds the collectors: four designs, which README.md describes, and ours.
func collectors(t *testing.T) (all []collector) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	plugin := plugintest.Build(t)
	for _, design := range []string{"floor", "walk", "DELs", "GC"} {
		all = append(all, collector{design, []string{"env", designEnv + "=" + design, self, "{dir}", "{pods.json}", plugin}})
	}
	command := filepath.Join(t.TempDir(), "hostlocal-gc")
	// The binary of its tests is the command on a node that has been up for a year.
	t.Setenv("IS_HOSTLOCAL_GC", "1")
	build := exec.Command("go", "test", "-c", "-race=false", "-o", command, "../hostlocal-gc")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	release := []string{command, "release", "--data-dir", "{dir}", "--network", network, "--source", "file:{pods.json}"}
	return append(all, collector{ours, release})
}

// collect runs a design. It reads only the addresses and containers of the list, as they do.
func collect(design, dir, list, binary string) (err error) {
	var pods []struct{ IPs, ContainerIDs []string }
	text, err := os.ReadFile(list)
	if err := errors.Join(err, json.Unmarshal(text, &pods)); err != nil {
		return err
	}
	var ips, containers []string
	for _, p := range pods {
		ips, containers = append(ips, p.IPs...), append(containers, p.ContainerIDs...)
	}
	top := filepath.Join(dir, network)
	if design == "walk" || design == "GC" {
		unlock, err := lock(top)
		if err != nil {
			return err
		}
		defer func() { _ = unlock() }() // it ends with the process
	}
	plugin := plugintest.Plugin{Binary: binary, DataDir: dir, Network: network,
		Ranges: []plugintest.Range{{Subnet: "10.0.0.0/24"}, {Subnet: "fd00::/64"}}}
	return filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		name, isAddress := d.Name(), net.ParseIP(d.Name()) != nil
		switch {
		case err != nil || path == top:
			return err
		case d.IsDir() && (design == "floor" || design == "DELs"):
			return fs.SkipDir
		case d.IsDir() || name == "lock" || strings.HasPrefix(name, "last_reserved_ip.") || !isAddress && (design == "walk" || design == "DELs"):
			return nil
		}
		if design == "floor" || design == "walk" {
			if slices.Contains(ips, name) {
				return nil
			}
			return os.Remove(path)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // as the plugin does
		}
		container, ifName, _ := strings.Cut(strings.TrimSpace(string(content)), "\n")
		container = strings.TrimSpace(container)
		switch live := slices.Contains(containers, container); {
		case design == "DELs" && !live && container != "":
			return plugin.Del(context.Background(), container, "eth0")
		case design == "GC" && !(live && (ifName == "" || ifName == "eth0")):
			return os.Remove(path)
		}
		return nil
	})
}

// Scripts that go wrong in each way get different outcomes.
func TestOutcomes(t *testing.T) {
	const (
		plain, empty, leaks = "one pod lives, one address leaked", "the list is empty (hazard 06)", `rm -f "$1"/podnet/10.0.0.250; `
		stays               = `setsid timeout 60 sh -c 'while [ -d "$0" ]; do sleep 0.1; done' "$1" & ` // until the test removes $1
	)
	cases := hazards(t)
	for _, c := range []struct{ reason, script, in, want string }{
		{"all is gone, which is worse than a crash", `rm -rf "$1"; kill -SEGV $$`, plain, loses},
		{"it acts, and says that it refuses", leaks + "exit 1", empty, acts},
		{"the file of the leak is there, and empty", `: > "$1"/podnet/10.0.0.250`, plain, keeps},
		{"the leak is there", "", plain, keeps},
		{"its caller takes it for a success", "", empty, silent},
		{"there was nothing to refuse", "exit 1", plain, fails},
		{"a crash is no refusal", "kill -SEGV $$", empty, fails},
		{"it is killed", "sleep 1000", plain, blocks},
		{"something of it runs on", stays + leaks, plain, blocks},
		{"host-local takes each file for a reservation", leaks + `: > "$1"/podnet/state`, plain, writes},
		{"the plugin holds the old lock", leaks + `cp "$1"/podnet/lock "$1"/l && mv "$1"/l "$1"/podnet/lock`, plain, destroys},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			h := cases[slices.IndexFunc(cases, func(h hazard) bool { return h.what == c.in })]
			outcome, said := h.try(t, collector{command: []string{"/bin/sh", "-c", c.script, "sh", "{dir}"}})
			if outcome != c.want {
				t.Errorf("outcome %q, want %q\n%s", outcome, c.want, said)
			}
		})
	}
}

// Outcomes of a case, worst first. README.md describes them.
const (
	loses    = "loses a live address"
	destroys = "removes what is no reservation"
	acts     = "releases all the same"
	writes   = "writes into the directory"
	blocks   = "does not end"
	silent   = "does not say why"
	fails    = "fails"
	keeps    = "keeps the leak"
	holds    = "holds"

	limit       = 25 * time.Second // after which a collector is killed
	ours, yours = "hostlocal-gc", "yours"
	designEnv   = "HOSTLOCAL_GC_DESIGN" // set in a process that runs a design
)

// A collector is a command. README.md describes its arguments and exit status.
type collector struct {
	name    string
	command []string
}

// run returns exec.ErrWaitDelay for a collector that exceeds the limit, or whose child keeps the output open.
func (c collector) run(t *testing.T, dir, pods string) (said string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	args := slices.Clone(c.command)
	for i := range args {
		args[i] = strings.NewReplacer("{dir}", dir, "{pods.json}", pods).Replace(args[i])
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = limit / 10
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // kill a script's children, too
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if cmd.Process == nil {
		t.Fatal(err)
	}
	_ = cmd.Cancel() // also after success, in case that children are left
	if ctx.Err() != nil {
		err = exec.ErrWaitDelay
	}
	return string(out), err
}

// try makes the case's directory, runs a collector on it, and judges the result.
func (h hazard) try(t *testing.T, c collector) (outcome, said string) {
	dir := gctest.NewDir(t)
	data, pods := filepath.Join(dir.Store.DataDir(), "networks"), filepath.Join(dir.Store.DataDir(), "pods.json")
	for name, content := range h.files {
		dir.Write("networks", name, content, h.ages[name])
	}
	list := "[" + strings.Join(h.pods, ",") + "]"
	if h.torn {
		list = list[:len(list)-10]
	}
	dir.Write(".", "pods.json", list, h.listAge)
	if h.more != nil {
		if err := h.more(filepath.Join(data, network)); err != nil {
			t.Fatal(err)
		}
	}
	before := contents(t, data)
	said, err := c.run(t, data, pods)
	after := contents(t, data)
	var exit *exec.ExitError
	said = fmt.Sprintf("%v\n%s\n(-before +after):\n%s", err, said, cmp.Diff(before, after))
	changed := func(path string) bool { return before[path] != after[path] }
	made := false
	for path := range after {
		_, was := before[path]
		made = made || !was && filepath.Base(path) != "lock" // the plugin creates it, too
	}
	for _, o := range []struct {
		is      bool
		outcome string
	}{
		{slices.ContainsFunc(h.keep, changed) && h.refuse, acts},
		{slices.ContainsFunc(h.keep, changed), loses},
		{slices.ContainsFunc(h.others, changed), destroys},
		{made, writes},
		{errors.Is(err, exec.ErrWaitDelay), blocks},
		{h.refuse && err == nil, silent},
		{h.refuse && errors.As(err, &exit) && exit.Exited(), holds},
		{err != nil, fails},
		{slices.ContainsFunc(h.release, func(path string) bool { return after[path] != "" }), keeps},
	} {
		if o.is {
			return o.outcome, said
		}
	}
	return holds, said
}

// lock takes the plugin's lock.
func lock(dir string) (unlock func() error, err error) {
	l, err := disk.NewFileLock(dir)
	if err != nil {
		return nil, err
	}
	return l.Close, l.Lock()
}

// contents returns the files below a data directory by their path, with type and content. For the lock it is the inode: a replaced
// lock locks nobody out.
func contents(t *testing.T, dir string) map[string]string {
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		var content []byte
		if err == nil && d.Name() == "lock" {
			content = fmt.Append(nil, info.Sys().(*syscall.Stat_t).Ino)
		} else if d.Type().IsRegular() {
			content, err = os.ReadFile(path)
		}
		name, relErr := filepath.Rel(dir, path)
		all[name] = fmt.Sprintf("%v %s", d.Type(), content)
		return errors.Join(err, relErr)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the collector may have removed dir
		t.Fatal(err)
	}
	return all
}
