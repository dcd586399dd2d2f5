// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/picture"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/reportjson"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

func (a *app) networksCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "networks",
		Short: "Show the networks under the data dir, with counts",
		Long: `Show the networks that have a directory under the data dir, how many addresses
are reserved in each, and which one host-local handed out last. It takes no lock
and writes nothing.`,
		Args: noArgs,
		RunE: work(a.networks),
	}
	a.flags.dir(c)
	a.flags.once(c)
	a.flags.output(c)
	return c
}

// A networkRow is a network in the output of networks. Its JSON is a contract.
type networkRow struct {
	Network      string       `json:"network"`
	DataDir      string       `json:"dataDir"`
	Reservations int          `json:"reservations"`
	IPv4         int          `json:"ipv4"`
	IPv6         int          `json:"ipv6"`
	LastReserved []netip.Addr `json:"lastReserved"`
}

// networks runs the command.
func (a *app) networks(ctx context.Context) error {
	if err := a.flags.check(); err != nil {
		return err
	}
	store, _, err := a.dataDir()
	if err != nil {
		return err
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	list, err := store.List(ctx)
	if err != nil {
		return err
	}
	rows := []networkRow{}
	for _, name := range list.Networks {
		row, err := countNetwork(store, name, list.Reservations)
		if err != nil {
			return fmt.Errorf("network %s: %w", name, err)
		}
		rows = append(rows, row)
	}
	return a.printNetworks(rows)
}

func countNetwork(store *hostlocal.Store, name string, rs []hostlocal.Reservation) (networkRow, error) {
	row := networkRow{Network: name, DataDir: store.DataDir()}
	for i := range rs {
		switch {
		case rs[i].Network != name:
		case rs[i].IP.Is4():
			row.IPv4++
		default:
			row.IPv6++
		}
	}
	row.Reservations = row.IPv4 + row.IPv6
	last, err := picture.ReadLast(filepath.Join(store.DataDir(), name))
	row.LastReserved = append([]netip.Addr{}, last...)
	return row, err
}

func (a *app) printNetworks(rows []networkRow) error {
	if a.flags.format == formatJSON {
		return reportjson.Write(a.stdout, rows)
	}
	if len(rows) == 0 {
		fmt.Fprintf(a.stdout, "No network has a directory in %s.\n", a.flags.dataDir)
		return nil
	}
	head := []term.Column{
		{Title: "NETWORK"}, {Title: "RESERVATIONS", Right: true}, {Title: "IPV4", Right: true}, {Title: "IPV6", Right: true},
		{Title: "LAST RESERVED"},
	}
	var cells [][]term.Cell
	total := 0
	for _, r := range rows {
		total += r.Reservations
		var last []string
		for _, ip := range r.LastReserved {
			last = append(last, ip.String())
		}
		cells = append(cells, []term.Cell{
			{Text: r.Network},
			{Text: strconv.Itoa(r.Reservations)},
			{Text: strconv.Itoa(r.IPv4), Style: term.Dim},
			{Text: strconv.Itoa(r.IPv6), Style: term.Dim},
			{Text: term.Dash(strings.Join(last, " "))},
		})
	}
	_, err := io.WriteString(a.stdout, fmt.Sprintf("%s\n%s: %s, %s.\n", a.screen.Table(head, cells),
		a.flags.dataDir, term.Count(len(rows), "network"), term.Count(total, "reservation")))
	return err
}
