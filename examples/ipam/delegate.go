// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

const (
	// plainName is the file name of the real host-local. realName is its name if this plugin is
	// installed under plainName.
	plainName = "host-local"
	realName  = "host-local.real"

	// mark is set in the delegate's environment. A process that finds it set is its own delegate,
	// and would execute itself for ever.
	mark = "HOSTLOCAL_GC_IPAM_DELEGATE"
)

// findDelegate returns the path of the real host-local. That is the first file called host-local
// that is not this program, in the directories of CNI_PATH and then in this program's, or else the
// first file called host-local.real there. For VERSION runtimes set a CNI_PATH without plugins.
func findDelegate(cniPath string) (string, error) {
	self, err := readSelf()
	if err != nil {
		return "", fmt.Errorf("looking for the real host-local: %w", err)
	}
	dirs := filepath.SplitList(cniPath)
	if dir := filepath.Dir(self.path); !slices.Contains(dirs, dir) {
		dirs = append(dirs, dir)
	}
	var unfit []string
	for _, name := range []string{plainName, realName} {
		if runtime.GOOS == "windows" {
			name += ".exe"
		}
		for _, dir := range dirs {
			path, err := filepath.Abs(filepath.Join(dir, name)) // a bare name would be searched in PATH
			if err != nil {
				return "", fmt.Errorf("looking for the real host-local: %w", err)
			}
			same, err := self.is(path)
			if err == nil && !same {
				return path, nil
			}
			if errors.Is(err, errNoProgram) {
				unfit = append(unfit, path)
			}
		}
	}
	if len(unfit) > 0 {
		return "", fmt.Errorf("hostlocal-gc-ipam found no host-local that can be executed: %s is not an executable file", strings.Join(unfit, " nor "))
	}
	return "", fmt.Errorf("hostlocal-gc-ipam found only itself, and no other host-local, in %v: install the real one there, as %s or as %s",
		dirs, plainName, realName)
}

// A program is this program's own file.
type program struct {
	path string // as it was executed
	info fs.FileInfo
}

func readSelf() (*program, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &program{path: path}
	p.info, err = os.Stat(selfFile(path))
	return p, err
}

var errNoProgram = errors.New("it is no program")

// is reports whether path is this program, a copy or another version of it, by the package that it
// was built from. It returns an error if path is not a program.
func (p *program) is(path string) (bool, error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() || runtime.GOOS != "windows" && info.Mode()&0o111 == 0 {
		return false, errNoProgram
	}
	if os.SameFile(info, p.info) {
		return true, nil
	}
	mine, ok := debug.ReadBuildInfo()
	other, err := buildinfo.ReadFile(path)
	return ok && err == nil && other.Path == mine.Path, nil // an error means that Go did not build it
}

// delegateEnv returns the delegate's environment: this process's with the mark.
func delegateEnv() []string { return append(os.Environ(), mark+"=1") }
