// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// lastReserved begins the names of the files in which host-local stores the last address of each
// range set. Its next search starts behind that address.
const lastReserved = "last_reserved_ip"

// ReadLast returns the addresses in a network's last_reserved_ip files, in the order of the files.
// Files without an address are skipped, since host-local then starts over. A missing directory has
// none.
func ReadLast(dir string) ([]netip.Addr, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", lastReserved, err)
	}
	var last []netip.Addr
	for _, e := range entries {
		if name := e.Name(); name != lastReserved && !strings.HasPrefix(name, lastReserved+".") || !e.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if ip, err := netip.ParseAddr(strings.TrimSpace(string(text))); err == nil {
			last = append(last, ip.Unmap())
		}
	}
	return last, nil
}
