// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
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
		Long: `Draw the address range as a grid of cells: one for each address, or for a block
of addresses if the range is too large for a screen. A block shows its worst
address, so that it hides no conflict and no leak. It releases nothing, takes no
lock and writes nothing but the file of --svg.

Without --cni-conf the range is unknown. The map then goes from the lowest to
the highest reservation. Without a --source nothing is judged. With -o json the
output is that of list.`,
		Example: `  hostlocal-gc map --source file:pods.json --cni-conf 10-podnet.conflist
  hostlocal-gc map --network podnet --source file:pods.json --svg podnet.svg`,
		Args: noArgs,
		RunE: work(a.draw),
	}
	a.flags.pass(c)
	a.flags.ranges(c)
	c.Flags().StringVar(&a.flags.svg, "svg", "", "also write the picture to this `FILE` as an SVG; with - only the SVG is printed")
	_ = c.MarkFlagFilename("svg", "svg")
	return c
}

// draw runs the command map.
func (a *app) draw(ctx context.Context) error {
	if err := a.flags.check(); err != nil {
		return err
	}
	if a.flags.svg == "-" && a.flags.format == formatJSON {
		return usagef("--svg - and -o json both want stdout")
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
	if err := a.svgOutside(); err != nil {
		return err
	}
	done, err := a.pass(ctx, s, true)
	if err != nil {
		return err
	}
	pictures, err := drawAll(&done, ranges)
	if err != nil {
		return err
	}
	return a.show(&done, pictures)
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

// show writes the pictures where the flags say.
func (a *app) show(r *result, pictures []picture.Picture) error {
	switch a.flags.svg {
	case "":
	case "-":
		_, err := io.WriteString(a.stdout, picture.SVG(pictures))
		return err
	default:
		if err := os.WriteFile(a.flags.svg, []byte(picture.SVG(pictures)), 0o644); err != nil {
			return fmt.Errorf("writing the SVG: %w", err)
		}
	}
	if a.flags.format == formatJSON {
		return a.printJSON(&r.Report)
	}
	if len(pictures) == 0 {
		if r.Err == nil {
			fmt.Fprintf(a.stdout, "No network has a directory in %s.\n", a.flags.dataDir)
		}
		return nil
	}
	_, err := io.WriteString(a.stdout, picture.Text(a.screen, pictures))
	return err
}

// svgOutside refuses to write into the data dir: a mistyped path must not
// replace a reservation.
func (a *app) svgOutside() error {
	if a.flags.svg == "" || a.flags.svg == "-" {
		return nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(a.flags.svg))
	if err != nil {
		return fmt.Errorf("writing the SVG: %w", err)
	}
	data, err := filepath.EvalSymlinks(a.flags.dataDir)
	if err != nil {
		return fmt.Errorf("data dir: %w", err)
	}
	dir, errDir := filepath.Abs(dir)
	data, errData := filepath.Abs(data)
	if err := errors.Join(errDir, errData); err != nil {
		return err
	}
	if rel, err := filepath.Rel(data, dir); err == nil && filepath.IsLocal(rel) {
		return fmt.Errorf("the SVG would be written into the data dir, to %s", a.flags.svg)
	}
	return nil
}
