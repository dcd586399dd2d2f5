// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A FileError says what is wrong with one file.
type FileError struct {
	Path string
	// First says that no other configuration comes before it in its directory. Most runtimes then
	// use this one, and no other.
	First bool
	Err   error
}

func (e *FileError) Error() string { return e.Path + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *FileError) Unwrap() error { return e.Err }

// ReadDir returns the networks of host-local in the configurations of a directory such as
// /etc/cni/net.d, in the order of the file names. It reads the files that libcni reads:
// *.conf, *.conflist and *.json. The plugins in <dir>/<name of the network>/*.conf belong to
// a list, too, unless it has loadOnlyInlinedPlugins. Most runtimes use only the first file, and libcni
// takes a network of a given name from the first file that has it, so those of that name and data
// directory in later files are left out.
//
// A file of more than a MiB is an error, and so are a directory that does not exist and one without
// any such file (both fs.ErrNotExist). ReadDir returns what it could read, and a [FileError] for
// each other file, joined.
func ReadDir(dir string) ([]Network, error) {
	files, err := confFiles(dir, ".conf", ".conflist", ".json")
	if err != nil {
		return nil, fmt.Errorf("reading CNI configurations: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("reading CNI configurations: there is none in %s: %w", dir, fs.ErrNotExist)
	}
	var networks []Network
	var errs []error
	for i, path := range files {
		found, err := readFile(path)
		networks = append(networks, slices.DeleteFunc(found, func(n Network) bool {
			return slices.ContainsFunc(networks, func(first Network) bool { return first.Name == n.Name && first.DataDir == n.DataDir })
		})...)
		if err != nil {
			errs = append(errs, &FileError{path, i == 0, err})
		}
	}
	return networks, errors.Join(errs...)
}

// ReadFile returns the networks of host-local in a file, as [ReadDir] does. Its error is a [FileError]
// whose First is true.
func ReadFile(path string) ([]Network, error) {
	networks, err := readFile(path)
	if err != nil {
		return networks, &FileError{path, true, err}
	}
	return networks, nil
}

// readFile returns the networks of a file and of the files that libcni adds to it.
func readFile(path string) ([]Network, error) {
	content, err := readRegular(path)
	if err != nil {
		return nil, err
	}
	c, err := decode(content)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(path) == ".conflist" && c.Name != "" && !strings.EqualFold(fmt.Sprint(c.InlinedOnly), "true") {
		added, err := confFiles(filepath.Join(filepath.Dir(path), filepath.Base(c.Name)), ".conf")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, path := range added {
			plugin, err := readRegular(path)
			if err != nil {
				return nil, err
			}
			c.Plugins = append(c.Plugins, json.RawMessage(plugin))
		}
	}
	return c.networks(0, true)
}

// confFiles returns the paths of the files in dir that have one of the extensions.
func confFiles(dir string, extensions ...string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(extensions, filepath.Ext(e.Name())) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, err
}

// maxFile is the maximum size of a file. A configuration has a few hundred bytes.
const maxFile = 1 << 20

// readRegular reads a file, or the target of a link. It opens no pipe, which would block.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file (%s)", info.Mode())
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("it has %d bytes, more than the maximum of %d for a CNI configuration", info.Size(), maxFile)
	}
	return os.ReadFile(path)
}
