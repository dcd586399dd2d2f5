// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// A pod has the JSON of the source file:PATH.
type pod struct {
	Namespace    string       `json:"namespace,omitempty"`
	Name         string       `json:"name,omitempty"`
	ContainerIDs []string     `json:"containerIDs,omitempty"`
	IPs          []netip.Addr `json:"ips,omitempty"`
	StartedAt    time.Time    `json:"startedAt,omitzero"`
}

// sandbox makes up a sandbox's ID.
func sandbox(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

// writePods replaces the list of pods at path atomically. Container IDs are names, as of add.
func writePods(t *testing.T, path string, pods ...pod) {
	t.Helper()
	if err := replacePods(path, pods); err != nil {
		t.Fatal(err)
	}
}

func replacePods(path string, pods []pod) error {
	all := make([]pod, len(pods))
	for i, p := range pods {
		ids := p.ContainerIDs
		p.ContainerIDs = nil
		for _, id := range ids {
			p.ContainerIDs = append(p.ContainerIDs, sandbox(id))
		}
		all[i] = p
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// add reserves an address for a sandbox of this name with the plugin, and dates it back.
func add(t *testing.T, p *plugintest.Plugin, name string, age time.Duration) netip.Addr {
	t.Helper()
	ips, err := p.Add(t.Context(), sandbox(name), "eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range ips {
		date(t, p, ip, age)
	}
	return ips[0]
}

func date(t *testing.T, p *plugintest.Plugin, ip netip.Addr, age time.Duration) {
	t.Helper()
	if age == 0 {
		return
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(p.File(ip), at, at); err != nil {
		t.Fatal(err)
	}
}

// there reports whether an address is reserved.
func there(p *plugintest.Plugin, ip netip.Addr) bool {
	_, err := os.Lstat(p.File(ip))
	return err == nil
}

// put writes a file for the agent to read.
func put(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
