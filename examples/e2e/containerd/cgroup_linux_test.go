// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// cgroups returns the directories of the control groups with that name, which may be a pattern:
// in the unified hierarchy, or in each hierarchy of version 1.
func cgroups(name string) []string {
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		found, _ := filepath.Glob(pattern + name) // the patterns are well-formed
		out = append(out, found...)
	}
	return out
}

// removeCgroups removes the control group with that name and those below it, and the groups of
// suites that this suite has started. Their processes have been killed, but may not have ended
// yet.
func removeCgroups(name string) error {
	if name == "" {
		return errors.New("the control group has no name")
	}
	timeout := time.After(maxWait)
	for tick := time.Tick(10 * time.Millisecond); ; {
		var errs []error
		for _, dir := range cgroups(name + "*") {
			errs = append(errs, removeCgroup(dir))
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		select {
		case <-timeout:
			return fmt.Errorf("removing control group %s: %w", name, err)
		case <-tick:
		}
	}
}

func removeCgroup(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return ignoreGone(err)
	})
	for _, d := range slices.Backward(dirs) {
		// os.Remove tries unlink first, with a less useful error.
		err = errors.Join(err, ignoreGone(syscall.Rmdir(d)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
