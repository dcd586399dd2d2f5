// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const (
	network = "podnet"
	ifName  = "eth0"
	// old is the age of all reservations: well over the minimum age.
	old = time.Hour
	// settle is how long new files are left alone before a pass: a leak on a node
	// has not been written in the last moment either.
	settle = 200 * time.Millisecond
	// Reservations are numbered within these sizes: more do not fit the subnet
	// below ADD's range.
	minSize, maxSize = 16, 1 << 17
)

// A scenario is a network's directory before a pass.
type scenario struct {
	Size   int // reservations, dual stack: half of them for each family
	Leaked share
	Dual   bool
}

// A share says how many of the containers have leaked.
type share string

const (
	none  share = "none"
	tenth share = "10 %"
	all   share = "all"
)

func (s share) has(container int) bool { return s == all || s == tenth && container%10 == 0 }

func (s scenario) family() string {
	if s.Dual {
		return "dual stack"
	}
	return "IPv4"
}

func (s scenario) String() string {
	return fmt.Sprintf("%s, %d reservations, leaked: %s", s.family(), s.Size, s.Leaked)
}

// A netDir is a network's directory and what is known of it from outside.
type netDir struct {
	scenario
	dataDir, dir string
	files        []file
	leaks        []file // those of the files that nobody owns
}

// A file is one reservation.
type file struct {
	ip        netip.Addr
	path      string
	container int
	id        string // the container's
}

// describe says what is, or will be, in the scenario's directory.
func describe(dataDir string, s scenario) *netDir {
	d := &netDir{scenario: s, dataDir: dataDir, dir: filepath.Join(dataDir, network)}
	ip4, ip6 := netip.MustParseAddr("10.64.0.1"), netip.MustParseAddr("fd00:10:64::1")
	for container := 0; len(d.files) < s.Size; container++ {
		sum := sha256.Sum256(fmt.Append(nil, container))
		add := func(ip netip.Addr) {
			r := file{ip, filepath.Join(d.dir, ip.String()), container, hex.EncodeToString(sum[:])}
			d.files = append(d.files, r)
			if s.Leaked.has(container) {
				d.leaks = append(d.leaks, r)
			}
		}
		add(ip4)
		ip4 = ip4.Next()
		if s.Dual {
			add(ip6)
			ip6 = ip6.Next()
		}
	}
	return d
}

// makeNetDir makes the scenario's directory in a data dir of its own.
func makeNetDir(parent string, s scenario) (*netDir, error) {
	dataDir, err := os.MkdirTemp(parent, "data-")
	if err != nil {
		return nil, fmt.Errorf("making a data dir: %w", err)
	}
	d := describe(dataDir, s)
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the network's directory: %w", err)
	}
	return d, write(d.files)
}

// refill makes the leaks again that a pass has released: as new files, whose
// removal costs what it costs on a node.
func (d *netDir) refill() error { return write(d.leaks) }

// write makes files as host-local does, in two goroutines.
func write(files []file) error {
	made := time.Now().Add(-old)
	middle := len(files) / 2
	var errs [2]error
	var wg sync.WaitGroup
	for half, mine := range [][]file{files[:middle], files[middle:]} {
		wg.Go(func() {
			for i := range mine {
				err := os.WriteFile(mine[i].path, []byte(mine[i].id+"\r\n"+ifName), 0o600)
				if err == nil {
					err = os.Chtimes(mine[i].path, made, made)
				}
				if err != nil {
					errs[half] = fmt.Errorf("making a reservation: %w", err)
					return
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(settle)
	return errors.Join(errs[:]...)
}

// check fails unless exactly the live reservations are left.
func (d *netDir) check() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return fmt.Errorf("checking what a pass left: %w", err)
	}
	names, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("checking what a pass left: %w", err)
	}
	left := 0
	for _, name := range names {
		if _, err := netip.ParseAddr(name); err == nil {
			left++
		}
	}
	if want := len(d.files) - len(d.leaks); left != want {
		return fmt.Errorf("a pass left %d reservations, want %d", left, want)
	}
	return nil
}

// live are the names of the files that are in use, as collectors that go by
// names want them.
func (d *netDir) live() map[netip.Addr]bool {
	out := make(map[netip.Addr]bool, len(d.files))
	for _, r := range d.files {
		if !d.Leaked.has(r.container) {
			out[r.ip] = true
		}
	}
	return out
}

// pods is a source's answer: the live pods by UID and container ID, as a runtime
// has them, and the agent itself.
func (d *netDir) pods() podsource.Static {
	pods := podsource.Static{{HostNetwork: true}}
	last := -1
	for _, r := range d.files {
		if r.container == last || d.Leaked.has(r.container) {
			continue
		}
		last = r.container
		pods = append(pods, podsource.Pod{UID: types.UID(r.id[:32]), ContainerIDs: []string{r.id}})
	}
	return pods
}
