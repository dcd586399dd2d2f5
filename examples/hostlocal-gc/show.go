// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func (a *app) showCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "show ADDRESS",
		Short: "Show everything about one address",
		Long: `Show everything about one address: its owner, when it was reserved, the other
reservations of its container, what each source says of both, and the verdict
with its reason. It releases nothing, takes no lock and writes nothing.`,
		Example: `  hostlocal-gc show 10.244.1.7 --source cri --source netns`,
		Args:    oneAddress,
	}
	a.flags.data(c)
	a.flags.judge(c)
	a.flags.others(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		return work(func(ctx context.Context) error { return a.showAddress(ctx, args[0]) })(cmd, args)
	}
	return c
}

// oneAddress refuses anything but one argument.
func oneAddress(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s takes one address", cmd.Name())
	}
	return nil
}

// parseAddress parses an address in any spelling, and returns it as host-local names it.
func parseAddress(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	if err == nil && ip.Zone() != "" {
		err = errors.New("host-local knows no zones")
	}
	if err != nil {
		return ip, usagef("%q is no address: %w", text, err)
	}
	return ip.Unmap(), nil
}

// A recorder records the last answer of a source, a union. Its lock is held during the call, which
// may end shortly after the pass if a source hangs.
type recorder struct {
	podsource.Source
	sync.Mutex
	answer podsource.Answer
}

func (l *recorder) Pods(ctx context.Context) (podsource.Answer, error) {
	l.Lock()
	defer l.Unlock()
	a, err := l.Source.Pods(ctx)
	l.answer = a
	return a, err
}

// showAddress runs the command show.
func (a *app) showAddress(ctx context.Context, text string) error {
	a.flags.format = formatTable
	ip, err := parseAddress(text)
	if err != nil {
		return err
	}
	s, err := a.checkedSource()
	if err != nil {
		return err
	}
	recorded := &recorder{Source: s}
	done, err := a.pass(ctx, recorded, func(opts *gc.Options) { opts.DryRun = true })
	if err != nil {
		return err
	}
	var out strings.Builder
	found := done.at(ip)
	for _, e := range found {
		a.describe(&out, &done, e, recorded)
	}
	if len(found) == 0 {
		fmt.Fprintf(&out, "%v: %s\n", ip, cmp.Or(done.elsewhere(ip), "it is not reserved in "+a.flags.dataDir))
		out.WriteString(a.section(term.Plain, "What the sources say:", a.said(recorded, ip, "")))
	}
	_, err = io.WriteString(a.stdout, out.String())
	return err
}

// describe writes what is known of a reservation.
func (a *app) describe(out *strings.Builder, r *result, e *gc.Entry, recorded *recorder) {
	head := fmt.Sprintf("%v in network %s", e.IP, e.Network)
	if r.judged {
		head += " is " + a.screen.Paint(term.VerdictStyle(e.Verdict), e.Verdict.String())
		fmt.Fprintf(out, "%s\n%s\n", head, a.screen.Fold(fmt.Sprintf("  %s (%s, %s)", e.Reason.Text(), e.Reason, e.Reason.Rule())))
	} else {
		fmt.Fprintln(out, head)
	}
	owner := e.ContainerID
	if e.Owner != hostlocal.Owned {
		owner = container(e)
	}
	rows := [][]term.Cell{
		{{Text: "container"}, {Text: owner}},
		{{Text: "interface"}, {Text: cmp.Or(e.IfName, "-")}},
		{{Text: "reserved"}, {Text: term.Age(r.Started, e.ReservedAt) + " ago"}},
		{{Text: "file"}, {Text: filepath.Join(r.DataDir, e.Network, e.IP.String())}},
	}
	if e.Pod != nil {
		rows = append(rows, []term.Cell{{Text: "pod"}, {Text: diagnose.PodName(e.Pod)}})
	}
	if c := r.causes.Of(e); c != "" {
		rows = append(rows, []term.Cell{{Text: "cause"}, {Text: fmt.Sprintf("%s (%s)", c, c.Text())}})
	}
	for i := range r.Reservations {
		if s := &r.Reservations[i]; s != e && e.Owner == hostlocal.Owned && s.ContainerID == e.ContainerID {
			rows = append(rows, []term.Cell{{Text: "also has"}, {Text: fmt.Sprintf("%v in network %s, %s", s.IP, s.Network, s.Verdict)}})
		}
	}
	out.WriteString(a.section(term.Plain, "The reservation:", rows))
	out.WriteString(a.section(term.Plain, "What the sources say:", a.said(recorded, e.IP, e.ContainerID)))
}

// said returns what each source says of an address and of a container.
func (a *app) said(recorded *recorder, ip netip.Addr, containerID string) (rows [][]term.Cell) {
	recorded.Lock()
	defer recorded.Unlock()
	for _, m := range recorded.answer.Members() {
		if m.Source == "" { // no source was asked
			continue
		}
		if m.Err != nil {
			rows = append(rows, []term.Cell{{Text: m.Source}, {Text: diagnose.InFlags("no answer: " + m.Err.Error()), Style: term.Yellow}})
			continue
		}
		before := len(rows)
		for i := range m.Pods {
			p := &m.Pods[i]
			var what []string
			if containerID != "" && slices.Contains(p.ContainerIDs, containerID) {
				what = append(what, "has the container")
			}
			if slices.Contains(p.IPs, ip) {
				what = append(what, "has the address")
			}
			if len(what) == 0 {
				continue
			}
			rows = append(rows, []term.Cell{{Text: m.Source}, {Text: podText(p) + " " + strings.Join(what, " and ")}})
		}
		if len(rows) == before {
			rows = append(rows, []term.Cell{{Text: m.Source}, {Text: "no live entry has the address or the container", Style: term.Dim}})
		}
	}
	return rows
}

// podText names an entry of a source.
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
