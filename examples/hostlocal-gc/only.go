// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/reportjson"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// planned is a reservation that a plan calls leaked. It is still the same one if all fields are
// equal.
type planned struct {
	Network     string     `json:"network"`
	IP          netip.Addr `json:"ip"`
	ContainerID string     `json:"containerID"`
	IfName      string     `json:"ifName"`
	ReservedAt  time.Time  `json:"reservedAt"`
}

// A plannedAt identifies a reservation of a plan by network and address. An edited plan may have it
// twice; the first one counts.
type plannedAt struct {
	network string
	ip      netip.Addr
}

func (p *planned) is(r *hostlocal.Reservation) bool {
	return p.Network == r.Network && p.IP == r.IP && p.ContainerID == r.ContainerID && p.IfName == r.IfName && p.ReservedAt.Equal(r.ReservedAt)
}

// maxPlan is the largest size of a plan in bytes. The plan of a full /16 has 30 MiB.
const maxPlan = 64 << 20

// readBounded reads a plan, which may come from a pipe. It stops waiting for the pipe when ctx
// ends.
func readBounded(ctx context.Context, path string) (text []byte, err error) {
	read := make(chan struct{})
	var got []byte
	var failed error
	go func() {
		defer close(read)
		f, err := os.Open(path)
		if err != nil {
			failed = err
			return
		}
		defer f.Close() //nolint:errcheck // only read
		if got, failed = io.ReadAll(io.LimitReader(f, maxPlan+1)); len(got) > maxPlan {
			failed = fmt.Errorf("%s is longer than %d MiB", path, maxPlan>>20)
		}
	}()
	select {
	case <-read:
		return got, failed
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", path, ctx.Err())
	}
}

// readPlan returns the reservations that a report of plan -o json calls leaked, in the networks
// that were requested then.
func readPlan(ctx context.Context, path string) (map[plannedAt]planned, error) {
	text, err := readBounded(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("reading the plan: %w", err)
	}
	var plan struct {
		SchemaVersion int    `json:"schemaVersion"`
		DataDir       string `json:"dataDir"`
		Looks         int    `json:"looks"`
		Reservations  []struct {
			planned
			Verdict string `json:"verdict"`
			Reason  string `json:"reason"`
		} `json:"reservations"`
	}
	if err := json.Unmarshal(text, &plan); err != nil {
		return nil, fmt.Errorf("reading the plan %s: %w; --from takes the output of hostlocal-gc plan -o json", path, err)
	}
	if plan.SchemaVersion != reportjson.SchemaVersion {
		return nil, fmt.Errorf("reading the plan %s: its schemaVersion is %d, and %d is known; make a new plan with this version",
			path, plan.SchemaVersion, reportjson.SchemaVersion)
	}
	if plan.DataDir == "" || plan.Looks == 0 {
		return nil, fmt.Errorf("reading the plan %s: nothing was judged in it; --from takes the output of hostlocal-gc plan -o json", path)
	}
	leaked := make(map[plannedAt]planned)
	for _, r := range plan.Reservations {
		at := plannedAt{r.Network, r.IP}
		if _, twice := leaked[at]; r.Verdict == gc.Leaked.String() && r.Reason != gc.NetworkNotNamed.String() && !twice {
			leaked[at] = r.planned
		}
	}
	return leaked, nil
}

// A selection is what --ip and --from narrow a release to.
type selection struct {
	ips  []netip.Addr // empty: all
	plan map[plannedAt]planned
	from string // "" without a plan
}

// selection reads the flags, and the plan.
func (f *flags) selection(ctx context.Context) (*selection, error) {
	s := &selection{from: f.from}
	for _, text := range f.ips {
		ip, err := parseAddress(text)
		if err != nil {
			return nil, usagef("--ip: %w", err)
		}
		if !slices.Contains(s.ips, ip) {
			s.ips = append(s.ips, ip)
		}
	}
	var err error
	if s.from != "" {
		s.plan, err = readPlan(ctx, s.from)
	}
	return s, err
}

// has reports whether a leak is selected.
func (s *selection) has(r *hostlocal.Reservation) bool {
	p, planned := s.plan[plannedAt{r.Network, r.IP}]
	return (s.from == "" || planned && p.is(r)) && (len(s.ips) == 0 || slices.Contains(s.ips, r.IP))
}

// refused returns an error for each address of --ip that was not released.
func (s *selection) refused(r *result) error {
	var errs []error
	for _, ip := range s.ips {
		why := cmp.Or(r.elsewhere(ip), "it is not reserved")
		for _, e := range r.at(ip) {
			if e.Verdict == gc.Released {
				why = ""
				break
			}
			why = fmt.Sprintf("it is %s in network %s: %s", e.Verdict, e.Network, e.Reason.Text())
			if e.Verdict == gc.Leaked {
				why = "it is leaked, but the plan has another reservation"
			}
		}
		if why != "" {
			errs = append(errs, fmt.Errorf("%v was not released: %s", ip, why))
		}
	}
	return errors.Join(errs...)
}

// outdated says how much of a plan was not carried out, because a reservation of it is gone,
// replaced, or no longer leaked.
func (s *selection) outdated(r *result) string {
	if s.from == "" {
		return ""
	}
	released := 0
	for i := range r.Reservations {
		if e := &r.Reservations[i]; e.Verdict == gc.Released {
			released++
		}
	}
	asked := 0
	for _, p := range s.plan {
		if len(s.ips) == 0 || slices.Contains(s.ips, p.IP) {
			asked++
		}
	}
	if released == asked {
		return ""
	}
	return fmt.Sprintf("%d of %d reservations of the plan %s were released; the others have changed since, are in a network that was not named, or are another node's", released, asked, s.from)
}
