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

// lastReserved is how the files begin in which host-local keeps, for each of its
// range sets, the address that it handed out last: the search goes on behind it.
const lastReserved = "last_reserved_ip"

// ReadLast returns the addresses that host-local handed out last in a network's
// directory, in the order of their files. It writes nothing. Files that hold no
// address are left out, since host-local itself starts over then; a missing
// directory has none.
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
