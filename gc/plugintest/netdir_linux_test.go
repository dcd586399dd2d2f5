// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A netDir is a network's directory before a pass.
type netDir struct {
	tb           testing.TB
	dataDir, dir string
	files        []costFile
	leaks        []costFile // the files whose owner is not live
}

// A costFile is one reservation.
type costFile struct {
	ip       netip.Addr
	path, id string
	leaked   bool
}

const costNetwork = "podnet"

// newNetDir makes a directory with size reservations that are an hour old. Every leakEvery-th
// has leaked, or none if that is 0.
func newNetDir(tb testing.TB, size, leakEvery int) *netDir {
	tb.Helper()
	d := &netDir{tb: tb, dataDir: tb.TempDir()}
	d.dir = filepath.Join(d.dataDir, costNetwork)
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	ip := netip.MustParseAddr("10.64.0.1")
	for i := range size {
		sum := sha256.Sum256(fmt.Append(nil, i))
		f := costFile{ip, filepath.Join(d.dir, ip.String()), hex.EncodeToString(sum[:]), leakEvery > 0 && i%leakEvery == 0}
		d.files = append(d.files, f)
		if f.leaked {
			d.leaks = append(d.leaks, f)
		}
		ip = ip.Next()
	}
	d.write(d.files)
	return d
}

// write writes files as host-local does, an hour old.
func (d *netDir) write(files []costFile) {
	made := time.Now().Add(-time.Hour)
	for _, f := range files {
		if err := os.WriteFile(f.path, []byte(f.id+"\r\neth0"), 0o600); err != nil {
			d.tb.Fatal(err)
		}
		if err := os.Chtimes(f.path, made, made); err != nil {
			d.tb.Fatal(err)
		}
	}
}

// check fails unless as many reservations are left as are live.
func (d *netDir) check(by string) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		d.tb.Fatal(err)
	}
	left := 0
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err == nil {
			left++
		}
	}
	if want := len(d.files) - len(d.leaks); left != want {
		d.tb.Fatalf("%s left %d reservations, want %d", by, left, want)
	}
}

// live returns the addresses in use, for collectors that compare file names.
func (d *netDir) live() map[netip.Addr]bool {
	out := make(map[netip.Addr]bool, len(d.files))
	for _, f := range d.files {
		if !f.leaked {
			out[f.ip] = true
		}
	}
	return out
}

// pods returns a source that names the live pods by UID and container ID, as a runtime
// does, and one pod without an address.
func (d *netDir) pods() podsource.Static {
	pods := podsource.Static{{HostNetwork: true}}
	for _, f := range d.files {
		if !f.leaked {
			pods = append(pods, podsource.Pod{UID: types.UID(f.id[:32]), ContainerIDs: []string{f.id}})
		}
	}
	return pods
}
