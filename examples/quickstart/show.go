// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// showBefore prints the network's directory before the pass.
func showBefore(out *bytes.Buffer, screen term.Screen, store *hostlocal.Store, rs []hostlocal.Reservation, attachments []attachment, now time.Time) error {
	owners := make(map[netip.Addr]*pod)
	for _, a := range attachments {
		for _, ip := range a.ips {
			owners[ip] = a.pod
		}
	}
	var rows [][]term.Cell
	for _, r := range rs {
		info, err := os.Stat(fileOf(store.DataDir(), r.IP))
		if err != nil {
			return err
		}
		p, story := owners[r.IP], term.Plain
		if p.lost {
			story = term.Magenta
		}
		rows = append(rows, []term.Cell{
			{Text: r.IP.String()},
			{Text: term.ID(r.ContainerID), Style: term.Dim},
			{Text: orDash(r.IfName), Style: term.Dim},
			{Text: term.Age(now, r.ReservedAt)},
			{Text: strconv.FormatInt(info.Size(), 10), Style: term.Dim},
			{Text: p.key().String()},
			{Text: p.now, Style: story},
		})
	}
	others, err := notReservations(store, rs)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s host-local's own code reserved %d addresses for %d pods, and lost track of some.\n\n",
		screen.Paint(term.Bold, "Before:"), len(rs), len(attachments))
	out.WriteString(screen.Table([]term.Column{
		{Title: "ADDRESS"}, {Title: "CONTAINER"}, {Title: "IFNAME"}, {Title: "AGE", Right: true},
		{Title: "SIZE", Right: true}, {Title: "POD"}, {Title: "WHAT HAPPENED"},
	}, rows))
	fmt.Fprintf(out, "\nBeside them, and never touched: %s\n", strings.Join(others, ", "))
	return nil
}

// notReservations returns the names in the network's directory that are not reservations.
func notReservations(store *hostlocal.Store, rs []hostlocal.Reservation) ([]string, error) {
	reserved := make(map[string]bool)
	for _, r := range rs {
		reserved[filepath.Base(fileOf(store.DataDir(), r.IP))] = true
	}
	entries, err := os.ReadDir(filepath.Join(store.DataDir(), network))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !reserved[e.Name()] {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// showAfter prints what a pass did; left is how many reservations there are now.
func showAfter(out *bytes.Buffer, screen term.Screen, report *gc.Report, left int) {
	var rows [][]term.Cell
	for _, e := range report.Reservations {
		style, pod := term.VerdictStyle(e.Verdict), "-"
		if e.Pod != nil {
			pod = e.Pod.String()
		}
		rows = append(rows, []term.Cell{
			{Text: e.IP.String()},
			{Text: string(e.Verdict), Style: style},
			{Text: e.Reason.Rule(), Style: term.Dim},
			{Text: pod},
			{Text: e.Reason.Text()},
		})
	}
	fmt.Fprintf(out, "\n%s one pass was made, and %d reservations are left.\n\n",
		screen.Paint(term.Bold, "After:"), left)
	out.WriteString(screen.Table([]term.Column{
		{Title: "ADDRESS"}, {Title: "VERDICT"}, {Title: "RULE"}, {Title: "POD"}, {Title: "REASON"},
	}, rows))
	out.WriteString("\n" + summary(screen, report))
}

// summary says in two lines what was released, what was kept and why, and what
// that cost.
func summary(screen term.Screen, report *gc.Report) string {
	counts := report.Counts()
	var why []string
	for _, v := range gc.Verdicts() {
		if n := counts[v]; n > 0 && v != gc.Released {
			why = append(why, screen.Paint(term.VerdictStyle(v), fmt.Sprintf("%d %s", n, v)))
		}
	}
	released := counts[gc.Released]
	return fmt.Sprintf("%s, kept %d: %s.\nThe plugin's lock was held for %s, the pass took %s.\n",
		screen.Paint(term.VerdictStyle(gc.Released), fmt.Sprintf("Released %d", released)),
		len(report.Reservations)-released, strings.Join(why, ", "),
		report.LockHeld.Round(time.Microsecond), report.Duration.Round(time.Microsecond))
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
