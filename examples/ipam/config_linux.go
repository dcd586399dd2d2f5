// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// A config is the part of a network configuration that this plugin uses. The main plugin passes its
// own configuration on to its IPAM plugin:
//
//	{"name": "podnet", "type": "bridge",
//	 "ipam": {"type": "hostlocal-gc-ipam", "ranges": […], "gc": {"cacheDirs": ["/data/cni/results"]}}}
type config struct {
	network   string
	plugin    string // the main plugin
	dataDir   string
	cacheDirs []string
	nested    bool
	timeout   time.Duration
}

// settings are the content of "gc" in "ipam" of a configuration, or of the file beside this
// program, for configurations that other software writes.
type settings struct {
	CacheDirs []string `json:"cacheDirs"`
	Nested    bool     `json:"nested"`
	// Timeout is the time of an ADD, and of a pass, such as "4m": what the runtime gives it.
	Timeout string `json:"timeout"`
}

// defaultTimeout is how long the call lasts with which kubelet has a sandbox made, and the ADD with
// it: twice its runtimeRequestTimeout of two minutes (Kubernetes 1.34, cri-client RunPodSandbox).
// containerd has no other limit (containerd#9627), CRI-O one of five minutes, nerdctl none.
const defaultTimeout = "4m"

// settingsFile is the name of the file beside this program.
const settingsFile = "hostlocal-gc-ipam.json"

// knownCacheDirs are directories in which libcni keeps results: its default, which containerd,
// CRI-O and all users of go-cni keep, and that of Multus.
var knownCacheDirs = []string{cnicache.DefaultDir, "/var/lib/cni/multus/results"}

// addressing are the main plugins that configure the addresses from IPAM in the container's network
// namespace. As long as their container lives, its namespace shows the address, or an interface
// without any (netns, Options.Networks).
var addressing = []string{"bridge", "ptp", "macvlan", "ipvlan", "vlan"}

// addresses reports whether the main plugin is in addressing.
func (c *config) addresses() bool { return slices.Contains(addressing, c.plugin) }

// parseConfig reads a configuration that host-local has accepted, and the settings.
func parseConfig(text []byte) (*config, error) {
	var whole struct {
		Name, Type string
		IPAM       struct {
			DataDir string
			GC      json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, fmt.Errorf("reading the network configuration: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(filepath.Dir(self), settingsFile)
	file, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	own, dirs := settings{Timeout: defaultTimeout}, slices.Clone(knownCacheDirs)
	for _, from := range []struct {
		name string
		text []byte
	}{{path, file}, {`"gc" in the "ipam" of network ` + whole.Name, whole.IPAM.GC}} {
		if own.CacheDirs = nil; len(from.text) > 0 {
			d := json.NewDecoder(bytes.NewReader(from.text))
			d.DisallowUnknownFields() // a cache directory that is not read could cost a container its address
			// Decode reads only the first value.
			if err := cmp.Or(json.Unmarshal(from.text, new(any)), d.Decode(&own)); err != nil {
				return nil, fmt.Errorf(`reading the settings in %s: %w; it must be an object of "cacheDirs", "nested" and "timeout"`, from.name, err)
			}
		}
		dirs = append(dirs, own.CacheDirs...)
	}
	timeout, err := time.ParseDuration(own.Timeout)
	if err != nil || timeout < time.Second || timeout > time.Hour {
		return nil, fmt.Errorf(`reading the settings: the "timeout" %q is not from 1s to 1h`, own.Timeout)
	}
	if !hostlocal.ValidName(whole.Name) {
		return nil, fmt.Errorf("reading the network configuration: %q is not the name of a CNI network", whole.Name)
	}
	return &config{
		network: whole.Name, plugin: whole.Type, dataDir: cmp.Or(whole.IPAM.DataDir, hostlocal.DefaultDataDir),
		cacheDirs: dirs, nested: own.Nested, timeout: timeout,
	}, nil
}
