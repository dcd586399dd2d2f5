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
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
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
/etc/cni/net.d, and asks the sources of a usual node (see help sources). It
releases nothing, takes no lock and writes nothing.

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
	s, err := a.source()
	if err != nil {
		return err
	}
	release := "hostlocal-gc release" + judgeFlags(given)
	all := checked{SchemaVersion: reportjson.SchemaVersion}
	var places []*place
	dirs := a.dataDirs(confs, given.Changed("data-dir"))
	opts := a.onceOptions()
	opts.DryRun = true
	opts.SourceTimeout /= time.Duration(len(dirs) + 1) // a source that hangs leaves time for the rest
	for _, dir := range dirs {
		p, err := a.inspect(ctx, dir, confs, s, opts)
		if err != nil {
			return err
		}
		places, all.Reports = append(places, p), append(all.Reports, reportjson.Report{Report: &p.report})
	}
	for _, p := range places {
		p.named, p.release = given.Changed("data-dir"), release+p.release
		all.Findings = append(all.Findings, diagnose(p, places)...)
	}
	slices.SortStableFunc(all.Findings, func(a, b finding) int { return slices.Index(words(), a.Word) - slices.Index(words(), b.Word) })
	if len(a.flags.sources) == 0 {
		refused := slices.IndexFunc(places, func(p *place) bool { return !p.judged })
		all.Sources = sourceResults(&places[max(refused, 0)].report)
	}
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
func (a *app) inspect(ctx context.Context, dir string, confs []cniconf.Network, s podsource.Source, opts gc.Options) (*place, error) {
	p := &place{asked: a.flags.networks, locks: make(map[string]string)}
	if dir != hostlocal.DefaultDataDir {
		p.release = " --data-dir " + quoted(dir)
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
	none := len(networks) == 0
	if none { // the sources are asked all the same
		networks = []string{gc.AllNetworks}
	}
	reconciler, err := gc.New(store, networks, s, opts)
	if err != nil {
		return nil, usageError{err}
	}
	p.report, err = reconciler.Reconcile(ctx)
	if none { // host-local does not serve this node, and the addresses of its pods are another plugin's
		p.report.Unreserved, p.report.Duplicates = nil, nil
	}
	if p.judged = !errors.Is(err, gc.ErrRefused); !p.judged {
		p.unknown = unanswered(&p.report, err)
		a.notePermission(err)
	} else {
		a.printError(err)
		p.unread = err != nil
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

// judgeFlags returns the flags with which a release judges as this check did.
func judgeFlags(given *pflag.FlagSet) (flags string) {
	given.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if several, ok := f.Value.(pflag.SliceValue); ok {
			values = several.GetSlice()
		}
		switch f.Name {
		case "source", "node", "kubeconfig", "min-age", "starting-for", "runtime-request-timeout", flagForeign, "allow-empty", "require-pod":
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
