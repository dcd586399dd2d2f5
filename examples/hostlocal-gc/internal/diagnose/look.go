// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"bytes"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// lookTime is the longest time for a look at a disk.
const lookTime = 5 * time.Second

// A Guard keeps those who look at a disk from hanging with it.
type Guard struct{ busy atomic.Bool }

// Do looks, and reports whether the look ended in time. One that hangs is left behind, and until it ends
// there is no other.
func (g *Guard) Do(look func()) bool {
	if !g.busy.CompareAndSwap(false, true) {
		return false
	}
	done := make(chan struct{})
	go func() {
		look()
		g.busy.Store(false) // before the next look
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(lookTime):
		return false
	}
}

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
	for e := range Entries(&p.Report) {
		if e.Verdict != gc.Malformed {
			continue
		}
		text, err := os.ReadFile(filepath.Join(p.Report.DataDir, e.Network, e.IP.String()))
		if err == nil && len(text) > 0 && len(bytes.Trim(text, "\x00")) == 0 {
			p.zeroed[e.Network]++
		}
	}
}
