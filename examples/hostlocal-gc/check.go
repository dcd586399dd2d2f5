// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/reportjson"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
)

// defaultCNIDir is where runtimes look for configurations.
const defaultCNIDir = "/etc/cni/net.d"

// lockedFor is how long one process must hold the plugin's lock before it is reported. An ADD holds
// it for milliseconds.
const lockedFor = 2 * time.Second

// errWrong gives check its exit status when something is wrong. It is not printed: the findings
// were.
var errWrong = errors.New("something is wrong")

func (a *app) checkCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "check",
		Short: "Find out why pods get no address on this node",
		Long: `Find out what is wrong with this node's addresses, and say so in the first line:

  MISSING     a network has no directory but should have one
  DUPLICATE   two live pods have the same address
  UNRESERVED  host-local may hand out the address of a live pod
  LOCKED      a process holds the plugin's lock, so each ADD waits
  UNKNOWN     the live pods, or the reservations, could not be read
  FULL        no address is left: some leaked, or the range is too small
  LEAKED      some addresses are leaked
  CONFLICT    a person must decide about a reservation
  OK

Without flags it finds the networks, their data directories and ranges in
/etc/cni/net.d, and asks the sources of this node: kubelet, the container
runtime, the kernel, and libcni's cache. It releases nothing, takes no lock and
writes nothing.

Exit status: 0 no problem, 3 a problem, 1 this could not be determined.`,
		Example: `  hostlocal-gc check
  hostlocal-gc check --network podnet --range 10.244.1.0/24 --source cri`,
		Args: noArgs,
	}
	a.flags.pass(c)
	c.Flags().StringVar(&a.flags.cniDir, "cni-dir", defaultCNIDir, "`DIR` with the CNI configurations of the networks")
	c.Flags().StringArrayVar(&a.flags.subnets, "range", nil,
		"range of the network of --network, as a `SUBNET` (repeatable), if no configuration has it")
	_ = c.MarkFlagDirname("cni-dir")
	c.RunE = work(func(ctx context.Context) error {
		return a.check(ctx, c.Flags())
	})
	return c
}

// check runs the command.
func (a *app) check(ctx context.Context, given *pflag.FlagSet) error {
	if err := a.flags.check(); err != nil {
		return err
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	confs, confErr, err := a.configurations(given.Changed("cni-dir"))
	if err != nil {
		return err
	}
	asked, err := a.findSources(ctx)
	if err != nil {
		return err
	}
	asked.flags += judgeFlags(given)
	all := checked{SchemaVersion: reportjson.SchemaVersion}
	var places []*place
	for _, dir := range a.dataDirs(confs, given.Changed("data-dir")) {
		p, err := a.inspect(ctx, dir, confs, asked)
		if err != nil {
			return err
		}
		places, all.Reports = append(places, p), append(all.Reports, reportjson.Report{Report: &p.report})
	}
	for _, p := range places {
		p.named = given.Changed("data-dir")
		all.Findings = append(all.Findings, diagnose(p, places)...)
	}
	slices.SortStableFunc(all.Findings, func(a, b finding) int { return slices.Index(words(), a.Word) - slices.Index(words(), b.Word) })
	all.Sources = asked.results
	if confErr != nil {
		all.NotRead = confErr.Error()
	}
	all.addUnread(a.failed, len(confs) > 0)
	if err := a.printChecked(&all); err != nil {
		return err
	}
	if n := slices.IndexFunc(all.Findings, func(f finding) bool { return f.Word == wordUnknown }); n >= 0 {
		what, _, _ := strings.Cut(all.Findings[n].Text, ":")
		return failure{errors.New(what)}
	}
	if slices.ContainsFunc(all.Findings, isWrong) {
		return errWrong
	}
	return nil
}

func isWrong(f finding) bool { return f.Word != wordOK }

// addUnread puts a finding first that says what could not be read, where nothing else is wrong. failed
// says that it was a reservation, whose error was printed. known says that some network has a
// configuration: runtimes skip other configurations that are broken.
func (c *checked) addUnread(failed, known bool) {
	text := ""
	switch {
	case slices.ContainsFunc(c.Findings, isWrong):
	case failed:
		text = "the reservations could not be read: see the error"
	case c.NotRead != "" && !known:
		text = "the networks and their ranges are unknown: see what was not read"
	}
	if text != "" {
		c.Findings = slices.Insert(c.Findings, 0, finding{Word: wordUnknown, Text: text})
	}
}

// configurations returns the networks of host-local in the node's configurations and of --range,
// and an error for what could not be read of them. A missing directory of configurations is an
// error only if it was named.
func (a *app) configurations(dirGiven bool) (confs []cniconf.Network, unread, err error) {
	for _, subnet := range a.flags.subnets {
		if len(a.flags.networks) != 1 || a.flags.allNetworks() {
			return nil, nil, usagef("--range is the range of one network: name that with --network")
		}
		text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": a.flags.networks[0], "type": "bridge",
			"ipam": map[string]any{"type": "host-local", "dataDir": a.flags.dataDir, "subnet": subnet}})
		if err != nil {
			return nil, nil, err
		}
		networks, err := cniconf.Parse(text)
		if err != nil {
			return nil, nil, usagef("--range %q: %w", subnet, err)
		}
		confs = append(confs, networks...)
	}
	found, unread := cniconf.ReadDir(a.flags.cniDir)
	if errors.Is(unread, fs.ErrNotExist) && !dirGiven {
		unread = nil
	}
	return append(confs, found...), unread, nil
}

// dataDirs returns the data directories to check: that of --data-dir, or else those of the
// configurations, or else host-local's default.
func (a *app) dataDirs(confs []cniconf.Network, given bool) (dirs []string) {
	if given {
		return []string{a.flags.dataDir}
	}
	for _, c := range confs {
		if !slices.Contains(dirs, c.DataDir) {
			dirs = append(dirs, c.DataDir)
		}
	}
	if len(dirs) == 0 {
		dirs = []string{a.flags.dataDir}
	}
	return dirs
}

// inspect makes a dry pass over a data directory.
func (a *app) inspect(ctx context.Context, dir string, confs []cniconf.Network, asked *foundSources) (*place, error) {
	p := &place{asked: a.flags.networks, locks: make(map[string]string), release: "hostlocal-gc release" + asked.flags}
	for _, u := range asked.failed {
		p.unknown = append(p.unknown, fmt.Sprintf("%s: %v", u.spec, u.err))
	}
	if dir != hostlocal.DefaultDataDir {
		p.release += " --data-dir " + quoted(dir)
	}
	store := hostlocal.New(dir)
	p.report.DataDir = dir
	names, err := store.Networks()
	if err != nil {
		return nil, err
	}
	p.networks = names
	networks := slices.Clone(names)
	for _, c := range confs {
		if sameDirectory(c.DataDir, dir) {
			p.confs = append(p.confs, c)
			networks = append(networks, c.Name)
		}
	}
	if len(a.flags.networks) > 0 && !a.flags.allNetworks() {
		networks = slices.Clone(a.flags.networks)
	}
	slices.Sort(networks)
	networks = slices.Compact(networks)
	held := holders(dir, networks)
	if asked.union == nil || len(asked.failed) > 0 || len(networks) == 0 {
		p.judged = len(networks) == 0 && len(asked.failed) == 0 && asked.union != nil
		r := a.unjudged(ctx, store, names)
		p.report = r.Report
		p.report.Networks, p.report.Missing, p.report.DataDirMissing = networks, missing(networks, names), names == nil
		if len(p.unknown) == 0 {
			p.unknown = []string{"no source was found on this node"}
		}
	} else {
		opts := a.onceOptions()
		opts.DryRun = true
		reconciler, err := gc.New(store, networks, asked.union, opts)
		if err != nil {
			return nil, usageError{err}
		}
		p.report, err = reconciler.Reconcile(ctx)
		if p.judged = !errors.Is(err, gc.ErrRefused); !p.judged {
			p.unknown = unanswered(&p.report, err)
			a.notePermission(err)
		} else {
			a.printError(err)
			p.unread = err != nil
		}
	}
	return p, a.stillHeld(ctx, dir, held, p)
}

// unanswered returns why a pass was refused: the error of each source that failed.
func unanswered(r *gc.Report, err error) (why []string) {
	for _, s := range r.Sources {
		if s.Error != "" {
			why = append(why, s.Name+": "+s.Error)
		}
	}
	if len(why) == 0 {
		why = []string{err.Error()}
	}
	return why
}

// judgeFlags returns the flags, besides --source, with which a release judges as this check did.
func judgeFlags(given *pflag.FlagSet) (flags string) {
	given.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if several, ok := f.Value.(pflag.SliceValue); ok {
			values = several.GetSlice()
		}
		switch f.Name {
		case "node", "kubeconfig", "min-age", "starting-for", "runtime-request-timeout", flagForeign, "allow-empty", "require-pod":
			for _, v := range values {
				flags += " --" + f.Name + "=" + quoted(v)
			}
		}
	})
	return flags
}

// quoted quotes a word for a shell. A directory's name comes from a configuration, and users copy
// the printed command.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r == '_' || r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("/.,:=@%+-", r)
	}
	if word != "" && strings.TrimLeftFunc(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// holders returns the processes that hold the locks of networks.
func holders(dir string, networks []string) map[string]int {
	held := make(map[string]int)
	for _, n := range networks {
		if pid, err := lockHolder(filepath.Join(dir, n)); err == nil && pid != 0 {
			held[n] = pid
		}
	}
	return held
}

// stillHeld notes the locks that the same process holds after lockedFor. It does not wait where no
// lock was held.
func (a *app) stillHeld(ctx context.Context, dir string, before map[string]int, p *place) error {
	if len(before) == 0 {
		return nil
	}
	timer := time.NewTimer(lockedFor)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("watching the lock: %w", ctx.Err())
	case <-timer.C:
	}
	for n, pid := range holders(dir, p.networks) {
		if before[n] == pid {
			p.locks[n] = fmt.Sprintf("%s holds %s for more than %v", describeProcess(pid), filepath.Join(dir, n, "lock"), lockedFor)
		}
	}
	return nil
}
