// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// traceAll counts the system calls that one pass makes on files, with strace -c.
// They do not depend on the place or on the machine, so one size is enough, as
// near to 4,096 as there is.
func traceAll(ctx context.Context, r *results, p place, sizes []int) error {
	strace, _ := exec.LookPath("strace")
	if strace == "" {
		r.notCalls = "strace is not installed"
		return nil
	}
	size := sizes[0]
	for _, s := range sizes {
		if s <= 4096 {
			size = max(size, s)
		}
	}
	for _, leaked := range []share{none, tenth, all} {
		for _, who := range []string{floor, walk, ours} {
			s := scenario{Size: size, Leaked: leaked}
			byName, err := trace(ctx, strace, p, s, who)
			if err != nil {
				return fmt.Errorf("counting system calls of %s: %w", who, err)
			}
			r.calls = append(r.calls, calls{s, who, byName})
		}
	}
	return nil
}

// trace runs this program twice under strace, with the pass and without, and
// returns the difference.
func trace(ctx context.Context, strace string, p place, s scenario, who string) (_ map[string]int, err error) {
	d, err := makeNetDir(p.dir, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dataDir)) }()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	count := func(idle bool) (map[string]int, error) {
		spec, err := json.Marshal(tracedSpec{d.dataDir, s, who, idle})
		if err != nil {
			return nil, err
		}
		out := filepath.Join(p.dir, "strace.out")
		cmd := exec.CommandContext(ctx, strace, "-f", "-c", "-U", "name,calls", "-e", "trace=%file,%desc", "-o", out, self)
		cmd.Env = append(os.Environ(), tracedEnv+"="+string(spec))
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, text)
		}
		return readCounts(out)
	}
	with, err := count(false)
	if err != nil {
		return nil, err
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	without, err := count(true)
	if err != nil {
		return nil, err
	}
	for name, n := range without {
		with[name] -= n
	}
	for name, n := range with {
		// The runtime's own come and go with its threads.
		if n <= 0 || strings.HasPrefix(name, "epoll") || name == "mmap" || name == "fcntl" {
			delete(with, name)
		}
	}
	return with, nil
}

// readCounts reads strace's table of names and calls.
func readCounts(path string) (map[string]int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	counts := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[0] == "total" {
			continue
		}
		if n, err := strconv.Atoi(fields[1]); err == nil { // else a heading
			counts[fields[0]] = n
		}
	}
	if len(counts) == 0 {
		return nil, fmt.Errorf("strace printed no table:\n%s", text)
	}
	return counts, nil
}
