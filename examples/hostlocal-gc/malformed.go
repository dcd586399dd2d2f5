// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/source"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func (a *app) removeMalformedCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "remove-malformed [ADDRESS...]",
		Short: "Remove files that name no owner",
		Long: `Remove the files of these addresses, or without any all files of the network,
with content that host-local never writes, such as the NUL bytes that a power
loss leaves. Every pass keeps such a file, since it names no owner. This command
shows the files. With --yes it removes a file under the plugin's lock, if

  - the file is unchanged since it was shown;
  - no live pod claims the address;
  - the addresses of every live pod in this network and family are known, from
    its source or from the kernel (--source netns);
  - the file is older than the longest ADD, --min-age and --starting-for.`,
		Example: `  hostlocal-gc remove-malformed --network podnet
  hostlocal-gc remove-malformed 10.244.1.5 --network podnet --source cri --source netns --yes`,
	}
	a.flags.data(c)
	a.flags.judge(c)
	c.Flags().BoolVar(&a.flags.yes, flagYes, false, "remove them; no variable sets this")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		return work(func(ctx context.Context) error { return a.removeMalformed(ctx, args) })(cmd, args)
	}
	return c
}

// removeMalformed runs the command.
func (a *app) removeMalformed(ctx context.Context, texts []string) error {
	a.flags.format = formatTable
	var ips []netip.Addr
	for _, text := range texts {
		ip, err := parseAddress(text)
		if err != nil {
			return err
		}
		ips = append(ips, ip)
	}
	if len(a.flags.networks) == 0 || a.flags.allNetworks() {
		return usagef("a --network is missing: in which network are the files?")
	}
	s, err := a.checkedSource()
	if err != nil {
		return err
	}
	files, refused, err := a.malformed(ctx, s, ips)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return refused
	}
	if err := a.showFiles(files); err != nil {
		return err
	}
	if !a.flags.yes {
		fmt.Fprintln(a.stdout, "Nothing was removed: --yes removes them.")
		return refused
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	done, err := hostlocal.New(a.flags.dataDir).Release(ctx, files...)
	errs := []error{refused, err}
	for i, r := range files {
		switch outcome := done.Outcomes[i]; {
		case outcome == hostlocal.Released:
			fmt.Fprintf(a.stdout, "Removed %s.\n", a.path(r))
		case outcome == hostlocal.Changed:
			errs = append(errs, fmt.Errorf("%s changed after it was shown, and was not removed", a.path(r)))
		case err == nil:
			errs = append(errs, fmt.Errorf("%s was not removed: it is %s", a.path(r), outcome))
		}
	}
	return errors.Join(errs...)
}

func (a *app) path(r *hostlocal.Reservation) string {
	return filepath.Join(a.flags.dataDir, r.Network, r.IP.String())
}

// malformed makes a pass and returns the malformed reservations of some addresses, or without any all of
// them, that no live pod may hold. refused says why the others are not among them.
func (a *app) malformed(ctx context.Context, s podsource.Source, ips []netip.Addr) (files []*hostlocal.Reservation, refused, err error) {
	recorded := &recorder{Source: s}
	done, err := a.pass(ctx, recorded, true)
	switch {
	case err != nil:
		return nil, nil, err
	case done.Err != nil: // which was printed
		return nil, nil, errors.New("nothing was removed, because of the error above")
	}
	networks := strings.Join(a.flags.networks, ", ")
	found := slices.DeleteFunc(done.shown(), func(e *gc.Entry) bool { return e.Reason != gc.OwnerMalformed })
	if len(ips) == 0 && len(found) == 0 {
		return nil, nil, fmt.Errorf("no file in %s is malformed", networks)
	}
	var errs []error
	if len(ips) > 0 {
		found = nil
	}
	for _, ip := range ips {
		switch at := done.at(ip); {
		case len(at) == 0:
			errs = append(errs, fmt.Errorf("%v is not reserved in %s", ip, networks))
		case len(at) > 1:
			errs = append(errs, fmt.Errorf("%v is reserved in several of these networks: name one with --network", ip))
		case at[0].Reason != gc.OwnerMalformed:
			errs = append(errs, fmt.Errorf("%v is %s and is not removed: %s", ip, at[0].Verdict, at[0].Reason.Text()))
		default:
			found = append(found, at[0])
		}
	}
	for _, e := range found {
		if err := a.checkUnclaimed(e.Reservation, &done, recorded.answer.Members()); err != nil {
			errs = append(errs, err)
		} else {
			files = append(files, e.Reservation)
		}
	}
	return files, errors.Join(errs...), nil
}

// checkUnclaimed returns an error that names who may hold a malformed reservation, whose file names
// nobody.
func (a *app) checkUnclaimed(r *hostlocal.Reservation, done *result, answers []podsource.Answer) error {
	asOf, lists, sees, records := done.Started, false, false, false
	for _, m := range answers {
		if m.AsOf.After(done.Started.Add(time.Second)) {
			return fmt.Errorf("the list of source %s is dated in the future", m.Source)
		}
		if !m.AsOf.IsZero() && m.AsOf.Before(asOf) {
			asOf = m.AsOf
		}
		lists = lists || !m.Supplementary && podsource.Covers(m.Networks, r.Network)
		sees, records = sees || m.SeesAddresses, records || m.Cache != nil
	}
	if !lists && !(sees && records) {
		return fmt.Errorf("no source here lists the pods of network %s: add one, such as --source cri", r.Network)
	}
	f := &a.flags
	least := max(time.Duration(f.minAge), f.startingFor, source.LongestADD(f.requestTimeout))
	if age := asOf.Sub(r.ReservedAt); age < least {
		return fmt.Errorf("%s is too young: it was written %v before the sources' answers, and must be %v older than they are",
			a.path(r), age.Round(time.Second), least)
	}
	for _, m := range answers {
		for i := range m.Pods {
			if p := &m.Pods[i]; mayHold(p, r, done, sees) {
				remedy := ""
				if !sees {
					remedy = "; --source netns sees them"
				}
				return fmt.Errorf("%s of source %s may hold it: its addresses of this family in network %s are not known for sure%s",
					podText(p), m.Source, r.Network, remedy)
			}
		}
	}
	return nil
}

// mayHold reports whether a pod may hold r, of which only the address is known. sees says that a
// source saw the addresses in network namespaces, so a pod with some addresses has no others.
func mayHold(p *podsource.Pod, r *hostlocal.Reservation, done *result, sees bool) bool {
	const finished = 5 * time.Minute // after which a pod holds nothing (R5)
	switch {
	case p.HostNetwork, p.HasFinished() && !p.FinishedAt.IsZero() && done.Started.Sub(p.FinishedAt) > finished:
		return false
	case len(p.ContainerIDs) == 0 && r.ReservedAt.Before(p.StartedAt.Add(-time.Second)): // it is older than the pod (R4)
		return false
	case p.MoreIPs:
		return true
	case sees && len(p.IPs) > 0:
		return false
	}
	return !slices.ContainsFunc(done.Reservations, func(e gc.Entry) bool {
		// What a container holds by its files alone may not be all: this may be the file of its
		// second interface in the network (hazard 22).
		its := slices.Contains(p.IPs, e.IP) || sees && e.Owner == hostlocal.Owned && slices.Contains(p.ContainerIDs, e.ContainerID)
		return its && e.Network == r.Network && e.IP.Is4() == r.IP.Is4()
	})
}

// showFiles prints what identifies the files to a person.
func (a *app) showFiles(files []*hostlocal.Reservation) error {
	var rows [][]term.Cell
	for _, r := range files[:min(len(files), fewRows)] {
		f, err := os.OpenFile(a.path(r), os.O_RDONLY|syscall.O_NONBLOCK, 0) // do not block on a pipe in its place
		if err != nil {
			return err
		}
		first := make([]byte, 32)
		n, err := io.ReadFull(f, first)
		_ = f.Close() // only read
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		age := term.Age(time.Now(), r.ReservedAt) + " ago"
		rows = append(rows, []term.Cell{{Text: a.path(r)}, {Text: age}, {Text: fmt.Sprintf("%+q", first[:n])}})
	}
	if more := len(files) - len(rows); more > 0 {
		rows = append(rows, []term.Cell{{Text: fmt.Sprintf("... %d more", more)}})
	}
	_, err := io.WriteString(a.stdout, a.section(term.Bold, "These files hold nothing that host-local writes, and begin with:", rows))
	return err
}
