// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func TestReadLast(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"last_reserved_ip": "10.0.0.1\n", "last_reserved_ip.0": "10.0.0.9", "last_reserved_ip.1": "fd00::9",
		"last_reserved_ip.2": "", "last_reserved_ip.3": "soon", "last_reserved_ipv4": "10.0.0.7", "10.0.0.8": "c\r\neth0", "lock": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "last_reserved_ip.4"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := ReadLast(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]netip.Addr{ip("10.0.0.1"), ip("10.0.0.9"), ip("fd00::9")}, got, sameAddr); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := ReadLast(filepath.Join(dir, "none")); err != nil || got != nil {
		t.Errorf("a missing directory: got %v and error %v", got, err)
	}
}
