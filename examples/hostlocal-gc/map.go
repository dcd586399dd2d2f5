// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/picture"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
)

func (a *app) mapCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "map",
		Short: "Draw the address range as a picture",
		Long: `Draw the address range as a grid with a cell for each address. Of a range that
is too large for a screen it draws the rows in which something is reserved, the
worst first. It releases nothing, takes no lock and writes nothing.

Without --cni-conf the range is unknown. The map then goes from the lowest to
the highest reservation. Without a --source nothing is judged.`,
		Example: `  hostlocal-gc map --source file:pods.json --cni-conf 10-podnet.conflist`,
		Args:    noArgs,
		RunE:    work(a.draw),
	}
	a.flags.data(c)
	a.flags.judge(c)
	a.flags.others(c)
	a.flags.ranges(c)
	return c
}

// draw runs the command map.
func (a *app) draw(ctx context.Context) error {
	if err := a.flags.check(); err != nil {
		return err
	}
	s, err := a.namedSource()
	if err != nil {
		return err
	}
	_, names, err := a.dataDir()
	if err != nil {
		return err
	}
	ranges, err := a.ranges(a.asked(names))
	if err != nil {
		return err
	}
	done, err := a.pass(ctx, s, true)
	if err != nil {
		return err
	}
	pictures, err := drawAll(&done, ranges)
	switch {
	case err != nil || len(pictures) == 0 && done.Err != nil: // which was printed
	case len(pictures) == 0:
		_, err = fmt.Fprintf(a.stdout, "No network has a directory in %s.\n", a.flags.dataDir)
	default:
		_, err = io.WriteString(a.stdout, picture.Text(a.screen, pictures))
	}
	return err
}

// ranges reads the configurations. Each must be of a network that is drawn.
func (a *app) ranges(networks []string) (map[string][]picture.Range, error) {
	out := make(map[string][]picture.Range)
	for _, path := range a.flags.cniConf {
		confs, err := cniconf.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the CNI configuration: %w", err)
		}
		drawn := false
		for _, conf := range confs {
			if !slices.Contains(networks, conf.Name) {
				continue
			}
			drawn = true
			if !sameDirectory(conf.DataDir, a.flags.dataDir) && conf.DataDir != hostlocal.DefaultDataDir {
				a.note("according to %s, host-local keeps %s in %s, not in %s", path, conf.Name, conf.DataDir, a.flags.dataDir)
			}
			if conf.Ranges == nil {
				return nil, fmt.Errorf("CNI configuration %s: the ranges of network %s are set at run time, and not in it", path, conf.Name)
			}
			out[conf.Name] = append(out[conf.Name], slices.Concat(conf.Ranges...)...)
		}
		if !drawn {
			return nil, fmt.Errorf("CNI configuration %s gives host-local no network that is drawn; drawn are %s",
				path, strings.Join(networks, ", "))
		}
	}
	return out, nil
}

func sameDirectory(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// drawAll makes a picture of each requested network that has a directory.
func drawAll(r *result, ranges map[string][]picture.Range) ([]picture.Picture, error) {
	var pictures []picture.Picture
	for _, n := range r.Networks {
		if slices.Contains(r.Missing, n) {
			continue
		}
		last, err := picture.ReadLast(filepath.Join(r.DataDir, n))
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", n, err)
		}
		pictures = append(pictures, picture.Draw(picture.Input{
			Title: n, Ranges: ranges[n], Reservations: picture.FromReport(&r.Report, n), Last: last,
		}))
	}
	return pictures, nil
}
