// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/picture"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

func (a *app) mapCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "map",
		Short: "Draw the address range as a picture",
		Long: `Draw the address range as a grid with a cell for each address: . is free, g the
gateway, and the line under the grid has the others. Of a range that is too
large for a screen it draws the rows in which something is reserved, the worst
first. It releases nothing, takes no lock and writes nothing.

It finds the ranges as check does. The map of a network whose range is unknown
goes from the lowest to the highest reservation.`,
		Example: `  hostlocal-gc map --network podnet --range 10.244.1.0/24 --source cri`,
		RunE:    a.once(a.draw),
	}
	a.flags.data(c)
	a.flags.confs(c)
	a.flags.once(c)
	return c
}

func (a *app) draw(ctx context.Context) error {
	confs, unread, err := a.configurations()
	if err != nil {
		return err
	}
	if unread != nil && !errors.Is(unread, fs.ErrNotExist) {
		a.note("%v", unread)
	}
	done, err := a.look(ctx)
	if err != nil {
		return err
	}
	ranges := make(map[string][]iprange.Range)
	for _, c := range confs {
		if sameDirectory(c.DataDir, done.DataDir) || c.DataDir == hostlocal.DefaultDataDir { // which is mounted elsewhere here
			ranges[c.Name] = append(ranges[c.Name], slices.Concat(c.Ranges...)...)
		}
	}
	var pictures []picture.Picture
	for _, n := range done.Networks {
		if !slices.Contains(done.Missing, n) {
			pictures = append(pictures, picture.Of(&done.Report, n, ranges[n]))
		}
	}
	switch {
	case len(pictures) == 0 && done.Err != nil: // which was printed
	case len(pictures) == 0:
		_, err = fmt.Fprintf(a.stdout, "No network has a directory in %s.\n", a.flags.dataDir)
	default:
		_, err = io.WriteString(a.stdout, picture.Text(a.screen, pictures))
	}
	return err
}

func sameDirectory(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
