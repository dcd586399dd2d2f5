// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A selection is what --ip narrows a release to: all if it is empty.
type selection []netip.Addr

// selection reads the flag.
func (f *flags) selection() (s selection, err error) {
	for _, text := range f.ips {
		ip, err := parseAddress(text)
		if err != nil {
			return nil, usagef("--ip: %w", err)
		}
		if !slices.Contains(s, ip) {
			s = append(s, ip)
		}
	}
	return s, nil
}

// has reports whether a leak is selected.
func (s selection) has(r *hostlocal.Reservation) bool { return len(s) == 0 || slices.Contains(s, r.IP) }

// refused returns an error for each address of --ip that was not released.
func (s selection) refused(r *result) error {
	var errs []error
	for _, ip := range s {
		why := cmp.Or(r.elsewhere(ip), "it is not reserved")
		for _, e := range r.at(ip) {
			if e.Verdict == gc.Released {
				why = ""
				break
			}
			why = fmt.Sprintf("it is %s in network %s: %s", e.Verdict, e.Network, e.Reason.Text())
		}
		if why != "" {
			errs = append(errs, fmt.Errorf("%v was not released: %s", ip, why))
		}
	}
	return errors.Join(errs...)
}
