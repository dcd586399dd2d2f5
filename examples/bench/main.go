// SPDX-License-Identifier: Apache-2.0

// Bench measures what a pass costs, beside what people use today, and how long
// the real plugin's ADD takes while passes run back to back.
//
//	go run ./examples/bench                    everything, in some forty minutes
//	go run ./examples/bench --passes           passes over IPv4 alone, in a few minutes
//	go run ./examples/bench --quick            a smoke test of itself, in seconds
//	go run ./examples/bench --markdown FILE --svg DIR
//
// All contestants run in one process and take turns, so that what else the
// machine does hits them alike: read the ratios, not the seconds. The tables go
// to standard output, progress goes to standard error.
//
// Start reading at contestants.go; what is measured of each is in measure.go, the
// latency of ADD in latency.go, and what must come out in targets.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := 0
	if err := entry(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		status = 1
	}
	stop()
	os.Exit(status)
}

// entry is the program, or, where strace started it, the one pass that is
// traced.
func entry(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if spec := os.Getenv(tracedEnv); spec != "" {
		return tracedPass(ctx, spec)
	}
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	return c.run(ctx, stdout, stderr)
}

// A config is what the flags say.
type config struct {
	sizes    []int
	runs     int
	passes   bool          // nothing but passes over IPv4, with none and 10 % leaked, and no DEL
	adds     int           // samples of ADD's latency for each load
	addTime  time.Duration // for all of one load's samples together
	dir      string
	tmpfs    string
	plugin   string
	markdown string
	svg      string
}

func parse(args []string, stderr io.Writer) (*config, error) {
	c := &config{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	sizes := flags.String("sizes", "256,4096,65536", "how many reservations, as a `LIST`")
	flags.IntVar(&c.runs, "runs", 5, "how often each contestant runs")
	flags.IntVar(&c.adds, "adds", 300, "how many ADDs are timed under each load")
	flags.DurationVar(&c.addTime, "add-time", time.Minute, "stop timing ADDs under one load after this time, however few they were")
	flags.BoolVar(&c.passes, "passes", false, "measure passes alone: IPv4, none and 10 % leaked, no DEL, no ADD, no system calls")
	quick := flags.Bool("quick", false, "a few seconds with small sizes: proves that it works, and nothing else")
	flags.StringVar(&c.dir, "dir", os.TempDir(), "a `DIRECTORY` on the disk to work in; empty: without one")
	flags.StringVar(&c.tmpfs, "tmpfs", "/dev/shm", "a `DIRECTORY` on a tmpfs to work in; empty, or not a tmpfs: without one")
	flags.StringVar(&c.plugin, "plugin", "", "host-local's `BINARY`; empty: built with go, at the version in the library's go.mod")
	flags.StringVar(&c.markdown, "markdown", "", "write the tables to this `FILE`, too")
	flags.StringVar(&c.svg, "svg", "", "draw the two plots into this `DIRECTORY`")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("there is no argument %q; see --help", flags.Arg(0))
	}
	if *quick {
		*sizes, c.runs, c.adds, c.addTime = "16,128", 2, 10, time.Second
	}
	for _, field := range strings.Split(*sizes, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < minSize || n > maxSize || n%2 != 0 {
			return nil, fmt.Errorf("--sizes: %q is not an even number from %d to %d", field, minSize, maxSize)
		}
		c.sizes = append(c.sizes, n)
	}
	if c.runs < 1 || c.adds < 1 {
		return nil, errors.New("--runs and --adds must be at least 1")
	}
	return c, nil
}

// run measures everything, and then prints and draws it.
func (c *config) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	begun := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(stderr, "%5.0f s  "+format+"\n", append([]any{time.Since(begun).Seconds()}, args...)...)
	}
	r := newResults(c)
	places, err := c.places(r)
	for _, p := range places {
		defer func() { err = errors.Join(err, os.RemoveAll(p.dir)) }()
	}
	if err != nil {
		return err
	}
	binary := c.plugin
	if binary == "" && !c.passes {
		say("building host-local")
		if binary, err = buildPlugin(ctx, places[0].dir); err != nil {
			return err
		}
	}
	for _, p := range places {
		for _, s := range c.scenarios() {
			say("%s, %s", p.name, s)
			if err := measure(ctx, r, p, s, contestants(s, !c.passes), binary); err != nil {
				return fmt.Errorf("%s, %s: %w", p.name, s, err)
			}
		}
	}
	if !c.passes {
		if err := c.runPlugin(ctx, r, places[0], binary, say); err != nil {
			return err
		}
	}
	r.took, r.load[1] = time.Since(begun), load()
	return c.publish(r, stdout)
}

// scenarios are those in which passes are measured.
func (c *config) scenarios() (out []scenario) {
	for _, dual := range []bool{false, true} {
		for _, size := range c.sizes {
			for _, leaked := range []share{none, tenth, all} {
				if !c.passes || !dual && leaked != all {
					out = append(out, scenario{size, leaked, dual})
				}
			}
		}
	}
	return out
}

// runPlugin measures what is not a pass.
func (c *config) runPlugin(ctx context.Context, r *results, p place, binary string, say func(string, ...any)) error {
	say("counting system calls")
	if err := traceAll(ctx, r, p, c.sizes); err != nil {
		return err
	}
	for _, size := range c.sizes {
		say("timing the plugin's ADD beside %d reservations, on %s", size, p.name)
		if err := timeADDs(ctx, r, p, size, c, binary); err != nil {
			return fmt.Errorf("timing ADDs: %w", err)
		}
	}
	return nil
}

// publish prints the tables, and writes what the flags ask for.
func (c *config) publish(r *results, stdout io.Writer) error {
	text := r.markdown()
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	if c.markdown != "" {
		if err := os.WriteFile(c.markdown, []byte(text), 0o644); err != nil {
			return fmt.Errorf("writing the tables: %w", err)
		}
	}
	if c.svg == "" {
		return nil
	}
	if err := os.MkdirAll(c.svg, 0o755); err != nil {
		return fmt.Errorf("making the directory for plots: %w", err)
	}
	plots := map[string]func() string{"time.svg": r.plotTime}
	if len(r.adds) > 0 {
		plots["add-latency.svg"] = r.plotADD
	}
	for name, draw := range plots {
		if err := os.WriteFile(filepath.Join(c.svg, name), []byte(draw()), 0o644); err != nil {
			return fmt.Errorf("writing a plot: %w", err)
		}
	}
	return nil
}

// A place is a directory to work in, on one kind of file system.
type place struct {
	name string // "tmpfs" or "disk"
	dir  string // removed in the end
}

// places makes the directories. The first is the one for what is measured once only.
func (c *config) places(r *results) ([]place, error) {
	var out []place
	add := func(name, parent string) error {
		dir, err := os.MkdirTemp(parent, "hostlocal-gc-bench-")
		if err != nil {
			return fmt.Errorf("making a directory to work in: %w", err)
		}
		out = append(out, place{name, dir})
		return nil
	}
	switch {
	case c.tmpfs == "":
	case !isTmpfs(c.tmpfs):
		r.remark("%s is not a tmpfs, and was left out.", c.tmpfs)
	default:
		if err := add("tmpfs", c.tmpfs); err != nil {
			return out, err
		}
	}
	if c.dir != "" {
		if isTmpfs(c.dir) {
			r.remark("The directory for the disk is on a tmpfs, too.")
		}
		if err := add("disk", c.dir); err != nil {
			return out, err
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is neither a tmpfs nor a disk to work on")
	}
	return out, nil
}
