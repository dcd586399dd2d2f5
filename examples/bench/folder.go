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

// A scenario is a node's folder before a pass.
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

func scenarios(sizes []int) (out []scenario) {
	for _, dual := range []bool{false, true} {
		for _, size := range sizes {
			for _, leaked := range []share{none, tenth, all} {
				out = append(out, scenario{size, leaked, dual})
			}
		}
	}
	return out
}

func (s scenario) family() string {
	if s.Dual {
		return "dual stack"
	}
	return "IPv4"
}

func (s scenario) String() string {
	return fmt.Sprintf("%s, %d reservations, leaked: %s", s.family(), s.Size, s.Leaked)
}

// A folder is a network's folder and what is known of it from outside.
type folder struct {
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

// describe says what is, or will be, in the scenario's folder.
func describe(dataDir string, s scenario) *folder {
	f := &folder{scenario: s, dataDir: dataDir, dir: filepath.Join(dataDir, network)}
	ip4, ip6 := netip.MustParseAddr("10.64.0.1"), netip.MustParseAddr("fd00:10:64::1")
	for container := 0; len(f.files) < s.Size; container++ {
		sum := sha256.Sum256(fmt.Append(nil, container))
		add := func(ip netip.Addr) {
			r := file{ip, filepath.Join(f.dir, ip.String()), container, hex.EncodeToString(sum[:])}
			f.files = append(f.files, r)
			if s.Leaked.has(container) {
				f.leaks = append(f.leaks, r)
			}
		}
		add(ip4)
		ip4 = ip4.Next()
		if s.Dual {
			add(ip6)
			ip6 = ip6.Next()
		}
	}
	return f
}

// makeFolder makes the scenario's folder in a data dir of its own.
func makeFolder(parent string, s scenario) (*folder, error) {
	dataDir, err := os.MkdirTemp(parent, "data-")
	if err != nil {
		return nil, fmt.Errorf("making a data dir: %w", err)
	}
	f := describe(dataDir, s)
	if err := os.Mkdir(f.dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the network's folder: %w", err)
	}
	return f, write(f.files)
}

// refill makes the leaks again that a pass has released: as new files, whose
// removal costs what it costs on a node.
func (f *folder) refill() error { return write(f.leaks) }

// write makes files as host-local does, with two hands.
func write(files []file) error {
	made := time.Now().Add(-old)
	half := len(files) / 2
	var errs [2]error
	var wg sync.WaitGroup
	for hand, mine := range [][]file{files[:half], files[half:]} {
		wg.Go(func() {
			for i := range mine {
				err := os.WriteFile(mine[i].path, []byte(mine[i].id+"\r\n"+ifName), 0o600)
				if err == nil {
					err = os.Chtimes(mine[i].path, made, made)
				}
				if err != nil {
					errs[hand] = fmt.Errorf("making a reservation: %w", err)
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
func (f *folder) check() error {
	d, err := os.Open(f.dir)
	if err != nil {
		return fmt.Errorf("checking what a pass left: %w", err)
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("checking what a pass left: %w", err)
	}
	left := 0
	for _, name := range names {
		if _, err := netip.ParseAddr(name); err == nil {
			left++
		}
	}
	if want := len(f.files) - len(f.leaks); left != want {
		return fmt.Errorf("a pass left %d reservations, want %d", left, want)
	}
	return nil
}

// live are the names of the files that are in use, as collectors that go by
// names want them.
func (f *folder) live() map[netip.Addr]bool {
	out := make(map[netip.Addr]bool, len(f.files))
	for _, r := range f.files {
		if !f.Leaked.has(r.container) {
			out[r.ip] = true
		}
	}
	return out
}

// pods is a source's answer: the live pods, by their addresses or by their
// container IDs, and the agent itself.
func (f *folder) pods(byID bool) podsource.Static {
	pods := podsource.Static{{HostNetwork: true}}
	last := -1
	for _, r := range f.files {
		if f.Leaked.has(r.container) {
			continue
		}
		if r.container != last {
			pods = append(pods, podsource.Pod{})
			last = r.container
			if byID {
				pods[len(pods)-1].ContainerIDs = []string{r.id}
			}
		}
		if p := &pods[len(pods)-1]; !byID {
			p.IPs = append(p.IPs, r.ip)
		}
	}
	return pods
}
