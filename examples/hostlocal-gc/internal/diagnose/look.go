// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"bytes"
	"os"
	"path/filepath"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// Look reads what the report does not say: whether the data directory can be written, and what is in
// files that name no owner.
func (p *Place) Look() {
	for _, name := range append([]string{"."}, p.Report.Networks...) {
		dir := filepath.Join(p.Report.DataDir, name)
		readOnly, full := diskOf(dir)
		if readOnly && p.readOnly == "" {
			p.readOnly = dir
		}
		if full && p.fullDisk == "" {
			p.fullDisk = dir
		}
	}
	p.zeroed = make(map[string]int)
	for e := range entries(&p.Report) {
		if e.Verdict != gc.Malformed {
			continue
		}
		text, err := os.ReadFile(filepath.Join(p.Report.DataDir, e.Network, e.IP.String()))
		if err == nil && len(text) > 0 && len(bytes.Trim(text, "\x00")) == 0 {
			p.zeroed[e.Network]++
		}
	}
}
