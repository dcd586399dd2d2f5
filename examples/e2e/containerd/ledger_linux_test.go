// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// The counts of a ledger that must stay zero.
const (
	heldTwice    = "addresses held twice"
	liveReleased = "live addresses released"
	trouble      = "errors"
)

// A ledger records the holders of addresses, as the tests start and stop pods. Its methods may
// be called from several goroutines.
type ledger struct {
	t       *testing.T
	network string

	mu      sync.Mutex
	holders map[netip.Addr]string // from the end of RunPodSandbox to the start of StopPodSandbox
	counts  map[string]int
}

func newLedger(t *testing.T, network string) *ledger {
	return &ledger{
		t: t, network: network, holders: make(map[netip.Addr]string),
		counts: map[string]int{heldTwice: 0, liveReleased: 0, trouble: 0},
	}
}

func (l *ledger) count(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[kind]++
}

func (l *ledger) counted(kind string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[kind]
}

// wrong counts an error, and logs the first ones of its kind.
func (l *ledger) wrong(kind, format string, args ...any) {
	l.t.Helper()
	l.mu.Lock()
	l.counts[kind]++
	many := l.counts[kind] > 5
	l.mu.Unlock()
	if many {
		l.t.Fail()
		return
	}
	l.t.Errorf(kind+": "+format, args...)
}

// took records that pods have their addresses.
func (l *ledger) took(pods ...pod) {
	l.t.Helper()
	for _, p := range pods {
		if len(p.ips) != 2 {
			l.wrong(trouble, "pod %s has the addresses %v", p.name, p.ips)
		}
		for _, ip := range p.ips {
			l.mu.Lock()
			holder := l.holders[ip]
			l.holders[ip] = p.id
			l.mu.Unlock()
			if holder != "" {
				l.wrong(heldTwice, "%s was given to %s, and %s holds it", ip, p.id, holder)
			}
		}
	}
}

// leave records that other pods may get a pod's addresses from now on.
func (l *ledger) leave(p pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ip := range p.ips {
		if l.holders[ip] == p.id {
			delete(l.holders, ip)
		}
	}
}

// holds checks that a pod's addresses are reserved for it.
func (l *ledger) holds(p pod) {
	l.t.Helper()
	for _, ip := range p.ips {
		content, err := os.ReadFile(reservationFile(l.network, ip))
		if owner, _, _ := strings.Cut(string(content), "\r\n"); err != nil || owner != p.id {
			l.wrong(liveReleased, "the reservation of %s of live pod %s has %q, %v", ip, p.id, content, err)
		}
	}
}

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.counts)
}

func reservationFile(network string, ip netip.Addr) string {
	return filepath.Join(hostlocal.DefaultDataDir, network, ip.String())
}
