// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// A file is one of a module's zip.
type file struct {
	name    string // slash-separated, below the module
	disk    string
	content []byte // if not nil, replaces the content on the disk
}

func (f file) Path() string { return f.name }
func (f file) Lstat() (fs.FileInfo, error) {
	info, err := os.Lstat(f.disk)
	if err == nil && f.content != nil {
		info = sized{info, int64(len(f.content))}
	}
	return info, err
}
func (f file) Open() (io.ReadCloser, error) {
	if f.content != nil {
		return io.NopCloser(bytes.NewReader(f.content)), nil
	}
	return os.Open(f.disk)
}

// sized is a file with another size.
type sized struct {
	fs.FileInfo
	size int64
}

func (s sized) Size() int64 { return s.size }

// zipOf returns the zip of a module as the proxy makes it, with the other modules
// of the repository at the same version, and its go.mod.
func (r *repo) zipOf(m *mod, version string) (zipped, goMod []byte, err error) {
	names, err := r.files(m.dir)
	if err != nil {
		return nil, nil, err
	}
	if goMod, err = r.goMod(m, version); err != nil {
		return nil, nil, err
	}
	var files []zip.File
	for _, name := range names {
		f := file{name: name, disk: filepath.Join(r.root, name)}
		if m.dir != "." {
			f.name = strings.TrimPrefix(name, m.dir+"/")
		}
		if f.name == "go.mod" {
			f.content = goMod
		}
		files = append(files, f)
	}
	var buf bytes.Buffer
	if err := zip.Create(&buf, module.Version{Path: m.path, Version: version}, files); err != nil {
		return nil, nil, fmt.Errorf("zipping %s: %w", m.path, err)
	}
	return buf.Bytes(), goMod, nil
}

// zipAll zips every module, including those that are never tagged.
func (r *repo) zipAll(out io.Writer) error {
	version, err := r.version()
	errs := []error{err}
	for _, m := range r.modules {
		if err := module.CheckPath(m.path); m.released && err != nil {
			errs = append(errs, err)
		}
		v := version
		if v == "" {
			v = "v0.1.0"
		}
		zipped, _, err := r.zipOf(m, v)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(out, "%7d kB  %s\n", (len(zipped)+999)/1000, m.path)
	}
	return errors.Join(errs...)
}

// publish writes the released modules into dir, in the layout of a module proxy.
func (r *repo) publish(dir, version string) error {
	for _, m := range r.modules {
		if !m.released {
			continue
		}
		zipped, goMod, err := r.zipOf(m, version)
		if err != nil {
			return err
		}
		escaped, err := module.EscapePath(m.path)
		if err != nil {
			return err
		}
		info, err := json.Marshal(struct {
			Version string
			Time    time.Time
		}{version, time.Now().UTC()})
		if err != nil {
			return err
		}
		at := filepath.Join(dir, filepath.FromSlash(path.Join(escaped, "@v")))
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		for name, text := range map[string][]byte{
			"list": []byte(version + "\n"), version + ".info": info, version + ".mod": goMod, version + ".zip": zipped,
		} {
			if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
