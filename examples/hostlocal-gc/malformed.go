// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func (a *app) removeMalformedCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "remove-malformed",
		Short: "Remove files that name no owner",
		Long: `Remove the files of a network with content that host-local never writes, such as
the NUL bytes that a power loss leaves. Every pass keeps such a file, since it
names no owner. This command shows the files. With --yes it removes a file under
the plugin's lock, if

  - the file is unchanged since it was shown;
  - no live pod claims the address, and the kernel was asked (--source netns);
  - the addresses of every live pod in this network and family are known;
  - the file is older than the longest ADD, --min-age and --starting-for.`,
		Example: `  hostlocal-gc remove-malformed --network podnet
  hostlocal-gc remove-malformed --network podnet --yes`,
	}
	a.flags.data(c)
	c.Flags().BoolVar(&a.flags.yes, "yes", false, "remove them")
	a.flags.once(c)
	c.RunE = a.once(func(ctx context.Context) error {
		if len(a.flags.networks) == 0 || a.flags.allNetworks() {
			return a.unnamed("in which network are the files?")
		}
		s, err := a.source()
		if err != nil {
			return err
		}
		return a.removeMalformed(ctx, s)
	})
	return c
}

func (a *app) removeMalformed(ctx context.Context, s podsource.Source) error {
	done, err := a.pass(ctx, s, dry)
	if err != nil {
		return err
	}
	m := mending{
		heading: "These files hold nothing that host-local writes:", none: "No file is malformed.", refused: make(map[string][]string),
	}
	for _, e := range done.shown() {
		if e.Reason != gc.OwnerMalformed {
			continue
		}
		if err := a.checkUnclaimed(e.Reservation, &done); err != nil {
			why := "kept: " + err.Error()
			m.refused[why] = append(m.refused[why], filepath.Join(e.Network, e.IP.String()))
			continue
		}
		path := filepath.Join(a.flags.dataDir, e.Network, e.IP.String())
		m.all = append(m.all, mend{
			row:  []string{path, term.Age(done.Started, e.ReservedAt) + " ago"},
			what: "Removed " + path + ".",
			do: func(ctx context.Context) error {
				release, err := hostlocal.New(a.flags.dataDir).Release(ctx, e.Reservation)
				if outcome := release.Outcomes[0]; err == nil && outcome != hostlocal.Released {
					err = fmt.Errorf("it was not removed: it is %s", outcome)
				}
				return err
			},
		})
	}
	return a.mend(ctx, &done, &m)
}

// checkUnclaimed returns an error that names who may hold a malformed reservation, whose file names
// nobody.
func (a *app) checkUnclaimed(r *hostlocal.Reservation, done *result) error {
	asOf, lists, sees := done.Started, false, false
	for _, m := range done.said {
		if m.AsOf.After(done.Started.Add(time.Second)) {
			return fmt.Errorf("the list of source %s is dated in the future", m.Source)
		}
		if !m.AsOf.IsZero() && m.AsOf.Before(asOf) {
			asOf = m.AsOf
		}
		lists = lists || m.Cache != nil || !m.Supplementary && podsource.Covers(m.Networks, r.Network)
		sees = sees || m.SeesAddresses
	}
	if !lists || !sees {
		return fmt.Errorf("that needs a source that lists the pods of network %s, and --source netns, as root and on the node", r.Network)
	}
	opts, _ := a.options().WithDefaults() // of which the pass told an error
	least := max(opts.MinAge, opts.StartingFor)
	if asOf.Sub(r.ReservedAt) < least {
		return fmt.Errorf("too young: a file must be %v older than the sources' answers", least)
	}
	for _, m := range done.said {
		for i := range m.Pods {
			if p := &m.Pods[i]; mayHold(p, r, done) {
				return fmt.Errorf("%s of source %s may hold it: its addresses of this family are not known for sure", podText(p), m.Source)
			}
		}
	}
	return nil
}

// mayHold reports whether a pod may hold r, of which only the address is known. The kernel was asked, so
// a pod with some addresses has no others, but for a container with an address that the kernel does not show (VFIO,
// gVisor), which libcni's cache has, if that was asked.
func mayHold(p *podsource.Pod, r *hostlocal.Reservation, done *result) bool {
	cached := slices.ContainsFunc(done.said, func(m podsource.Answer) bool { return m.Cache != nil })
	const finished = 5 * time.Minute // after which a pod holds nothing (R5)
	switch {
	case p.HostNetwork, p.HasFinished() && !p.FinishedAt.IsZero() && done.Started.Sub(p.FinishedAt) > finished:
		return false
	case len(p.ContainerIDs) == 0 && r.ReservedAt.Before(p.StartedAt.Add(-time.Second)): // it is older than the pod (R4)
		return false
	case p.MoreIPs:
		return true
	case len(p.IPs) > 0 && (cached || len(p.ContainerIDs) == 0):
		return false
	}
	return !slices.ContainsFunc(done.Reservations, func(e gc.Entry) bool { // its own address is known
		return e.Owner == hostlocal.Owned && slices.Contains(p.ContainerIDs, e.ContainerID) && e.Network == r.Network && e.IP.Is4() == r.IP.Is4()
	})
}
