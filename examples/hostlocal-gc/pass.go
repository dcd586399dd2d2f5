// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A result is the report of a pass. It is valid even if the pass had an error, which was printed.
type result struct {
	gc.Report
	judged   bool // the sources gave an answer that counts
	released bool // something may have been released
	causes   diagnose.Causes
	said     []podsource.Answer // of the sources
}

// longest is the time that a command may take.
func (f *flags) longest() time.Duration { return cmp.Or(f.timeout, 24*time.Hour) }

func dry(opts *gc.Options) { opts.DryRun = true }

func (a *app) look(ctx context.Context) (result, error) {
	s, err := a.source()
	if err != nil {
		return result{}, err
	}
	return a.pass(ctx, s, dry)
}

// pass makes one pass over the data directory, with options that a command changes.
func (a *app) pass(ctx context.Context, s podsource.Source, change func(*gc.Options)) (result, error) {
	store, names, err := a.dataDir()
	if err != nil {
		return result{}, err
	}
	if len(a.asked(names)) == 0 { // there is none
		return result{Report: gc.Report{DataDir: store.DataDir(), Started: time.Now()}}, nil
	}
	done, err := a.reconcile(ctx, store, a.asked(names), s, change)
	for _, n := range done.Missing { // a person may have mistyped it; the library takes it for an empty network
		missing := fmt.Errorf("network %q has no directory in %s; %s", n, a.flags.dataDir, existing(names))
		a.printError(missing)
		done.Err = errors.Join(done.Err, missing)
	}
	return done, err
}

// reconcile makes a pass in these networks.
func (a *app) reconcile(
	ctx context.Context, store *hostlocal.Store, networks []string, s podsource.Source, change func(*gc.Options),
) (result, error) {
	opts := a.onceOptions()
	change(&opts)
	var lock sync.Mutex // a source that hangs may answer after the pass
	var answer podsource.Answer
	recorded := podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		got, err := s.Pods(ctx)
		lock.Lock()
		defer lock.Unlock()
		answer = got
		return got, err
	})
	reconciler, err := gc.New(store, networks, recorded, opts)
	if err != nil {
		return result{}, usageError{err}
	}
	report, err := reconciler.Reconcile(ctx)
	report.Err = err
	if report.Memory != "" { // which fails no pass
		_, _ = fmt.Fprintf(a.stderr, "hostlocal-gc: waits begin with this pass: %s\n", report.Memory) // it may be closed
	}
	a.printError(err)
	causes, _ := diagnose.NewInquiry(a.flags.sources).Find(ctx, &report, nil)
	lock.Lock()
	defer lock.Unlock()
	return result{report, !errors.Is(err, gc.ErrRefused), !opts.DryRun, causes, answer.Members()}, nil
}

// onceOptions are the options of a command's single pass, in which one source may take all of
// --timeout.
func (a *app) onceOptions() gc.Options {
	opts := a.options()
	opts.SourceTimeout = a.flags.longest()
	return opts
}

// shown returns the entries of the requested networks.
func (r *result) shown() (of []*gc.Entry) {
	for e := range diagnose.Entries(&r.Report) {
		if slices.Contains(r.Networks, e.Network) {
			of = append(of, e)
		}
	}
	return of
}

func (r *result) at(ip netip.Addr) (of []*gc.Entry) {
	for e := range diagnose.Entries(&r.Report) {
		if e.IP == ip {
			of = append(of, e)
		}
	}
	return of
}

func (a *app) plan(ctx context.Context) error {
	chosen, err := a.flags.selection()
	if err != nil {
		return err
	}
	done, err := a.look(ctx)
	if err != nil {
		return err
	}
	return a.print(&done, chosen)
}

func (a *app) release(ctx context.Context) error {
	if len(a.flags.networks) == 0 {
		return a.unnamed("release works only on networks that are named")
	}
	if err := a.flags.checkAllNetworks(); err != nil {
		return err
	}
	s, err := a.source()
	if err != nil {
		return err
	}
	chosen, err := a.flags.selection()
	if err != nil {
		return err
	}
	done, err := a.pass(ctx, s, func(opts *gc.Options) { opts.Only = chosen.has })
	if err != nil {
		return err
	}
	return errors.Join(a.print(&done, nil), chosen.refused(&done))
}

// A selection is what --ip narrows a command to: all if it is empty.
type selection []netip.Addr

// selection reads the flag. Addresses in any spelling are those that host-local names.
func (f *flags) selection() (s selection, err error) {
	for _, text := range f.ips {
		ip, err := netip.ParseAddr(text)
		if err == nil && ip.Zone() != "" {
			err = errors.New("host-local knows no zones")
		}
		if err != nil {
			return nil, usagef("--ip: %q is no address: %w", text, err)
		}
		if ip = ip.Unmap(); !slices.Contains(s, ip) {
			s = append(s, ip)
		}
	}
	return s, nil
}

// has reports whether a reservation is selected.
func (s selection) has(r *hostlocal.Reservation) bool { return len(s) == 0 || slices.Contains(s, r.IP) }

// refused returns an error for each address of --ip that was not released.
func (s selection) refused(r *result) error {
	var errs []error
	for _, ip := range s {
		why := "it is not reserved"
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

// of says who has an address, by the files and by each source.
func (a *app) of(ip netip.Addr, r *result) string {
	var networks, owners []string
	for _, e := range r.at(ip) {
		networks, owners = append(networks, e.Network), append(owners, e.ContainerID)
	}
	head := fmt.Sprintf("%v is reserved in %s.", ip, strings.Join(networks, ", "))
	if networks == nil {
		head = fmt.Sprintf("%v is not reserved in %s.", ip, r.DataDir)
	}
	var rows [][]string
	for i := range r.said {
		m, before := &r.said[i], len(rows)
		for j := range m.Pods {
			p := &m.Pods[j]
			owns := slices.ContainsFunc(owners, func(id string) bool { return id != "" && slices.Contains(p.ContainerIDs, id) })
			switch has := slices.Contains(p.IPs, ip); {
			case owns && has:
				rows = append(rows, []string{m.Source, podText(p) + " has the container and the address"})
			case owns:
				rows = append(rows, []string{m.Source, podText(p) + " has the container"})
			case has:
				rows = append(rows, []string{m.Source, podText(p) + " has the address"})
			}
		}
		switch {
		case m.Source == "": // no source was asked
		case m.Err != nil:
			rows = append(rows, []string{m.Source, diagnose.InFlags("no answer: " + m.Err.Error())})
		case len(rows) == before:
			rows = append(rows, []string{m.Source, "no live entry has the address or the container"})
		}
	}
	return a.section(head+" The sources say:", rows)
}

func podText(p *podsource.Pod) string {
	name := cmp.Or(p.Origin, "an entry without a name")
	if p.Name != "" {
		name = p.Namespace + "/" + p.Name
	}
	if p.HasFinished() {
		name += ", which has finished,"
	}
	return name
}

// dataDir opens the data directory and returns the names of its networks. A missing directory is an
// error here, since a person may have mistyped it. The library takes it for an empty one.
func (a *app) dataDir() (*hostlocal.Store, []string, error) {
	dir := a.flags.dataDir
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("data dir %s: there is no such directory; --data-dir says where host-local keeps its networks", dir)
	}
	store := hostlocal.New(dir)
	names, err := store.Networks()
	if last, _ := filepath.Glob(filepath.Join(dir, "last_reserved_ip*")); err == nil && len(names) == 0 && len(last) > 0 {
		err = fmt.Errorf("data dir %s is itself a network's directory; the data dir is the directory above it", dir)
	}
	return store, names, err
}

// asked returns the networks that --network names, or all that have a directory.
func (a *app) asked(names []string) []string {
	if len(a.flags.networks) == 0 || a.flags.allNetworks() {
		return names
	}
	return slices.Compact(slices.Sorted(slices.Values(a.flags.networks)))
}

// unnamed returns an error that lists the networks of which --network must name some.
func (a *app) unnamed(why string) error {
	_, names, err := a.dataDir()
	if err == nil {
		err = fmt.Errorf("%s: %s", a.flags.dataDir, existing(names))
	}
	return usagef("a --network is missing: %s (%w)", why, err)
}

func existing(names []string) string {
	return "it holds " + cmp.Or(term.Few(names, 20), "no network")
}
