// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/reportjson"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// defaultCNIDir is where runtimes look for configurations, and otherCNIDirs are those of k3s (k3s-io/k3s,
// pkg/agent/config/config.go: CNIConfDir) and of MicroK8s (its documentation of the CNI configuration).
const defaultCNIDir = "/etc/cni/net.d"

var otherCNIDirs = []string{"/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/snap/microk8s/current/args/cni-network"}

// lockedFor is how long one process must hold the plugin's lock before it is reported. An ADD holds
// it for milliseconds.
const lockedFor = 2 * time.Second

func (a *app) checkCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "check",
		Short: "Find out why pods get no address on this node",
		Long: `Find out what is wrong with this node's addresses, and say so in the first line:

  MISSING     a network has no directory but should have one
  DUPLICATE   two live pods have the same address
  UNRESERVED  host-local may hand out the address of a live pod
  LOCKED      a process holds the plugin's lock, so each ADD waits
  READ-ONLY   the data directory can't be written, or its disk is full
  CONFIG      there is no network configuration, or it is wrong
  UNKNOWN     the live pods, reservations, owners or the range are not known
  FULL        no address is left, and by whom they are held
  LEAKED      some addresses are leaked
  CONFLICT    a person must decide about a reservation
  OK          all of that is known, and there are free addresses

Without flags it finds the networks, their data directories and ranges in
/etc/cni/net.d, or else where k3s or MicroK8s has them, and asks the sources of
a usual node (see help sources). It releases nothing, takes no lock and writes
nothing.

Exit status: 0 OK, 3 a problem, 1 the first line is UNKNOWN.`,
		Example: `  hostlocal-gc check
  hostlocal-gc check --network podnet --range 10.244.1.0/24 --source cri`,
	}
	a.flags.confs(c)
	a.flags.pass(c)
	c.RunE = a.once(func(ctx context.Context) error { return a.check(ctx, c.Flags()) })
	return c
}

func (a *app) check(ctx context.Context, given *pflag.FlagSet) error {
	confs, unread, err := a.configurations()
	if err != nil {
		return err
	}
	s, err := a.source()
	if err != nil {
		return err
	}
	all := checked{SchemaVersion: reportjson.SchemaVersion}
	dirs, err := a.dataDirs(ctx, confs, given.Changed("data-dir"))
	if err != nil {
		return err
	}
	opts := a.onceOptions()
	opts.DryRun = true
	opts.SourceTimeout /= time.Duration(len(dirs) + 1) // a source that hangs leaves time for the rest
	var places []*diagnose.Place
	for _, dir := range dirs {
		p, err := a.inspect(ctx, dir, confs, s, opts)
		if err != nil {
			return err
		}
		at := ""
		if dir.path != hostlocal.DefaultDataDir {
			at = " --data-dir " + quoted(dir.path)
		}
		p.Command = func(name string) string {
			return "hostlocal-gc " + name + flagsOf(given, slices.Concat(judging, configured[name])) + at
		}
		places, all.Reports = append(places, p), append(all.Reports, reportjson.Report{Report: &p.Report})
	}
	all.Findings = diagnose.Findings(places)
	all.addUnread(a, unread, len(confs) > 0)
	if err := a.printChecked(&all); err != nil {
		return err
	}
	switch first := all.Findings[0]; first.Word {
	case diagnose.OK:
		return nil
	case diagnose.Unknown:
		what, _, _ := strings.Cut(first.Text, ":")
		return errors.New(what)
	}
	return errFound
}

// addUnread adds findings about configurations that could not be read. A configuration
// that runtimes do not use is only mentioned. known says that some network has a configuration.
func (c *checked) addUnread(a *app, unread error, known bool) {
	add := func(f diagnose.Finding) { c.Findings = append(c.Findings, f) }
	reserved, inUse := false, false
	for _, r := range c.Reports {
		for e := range diagnose.Entries(r.Report) {
			reserved, inUse = true, inUse || e.Verdict == gc.InUse
		}
	}
	var f *cniconf.FileError
	files := false
	joined, several := unread.(interface{ Unwrap() []error })
	for i := 0; several && i < len(joined.Unwrap()); i++ {
		if !errors.As(joined.Unwrap()[i], &f) {
			continue
		}
		files = true
		nameless := errors.Is(f.Err, cniconf.ErrNoName) && reserved // a runtime of old, which takes it
		switch {
		case errors.Is(f.Err, fs.ErrPermission):
			add(diagnose.Finding{Word: diagnose.Unknown, Text: f.Error(), Do: "Run it as root (sudo)."})
		case f.First && !nameless:
			add(diagnose.Finding{Word: diagnose.Config, Text: f.Error(), Do: "Most runtimes use this configuration, and no pod starts with it."})
		default:
			c.NotRead = append(c.NotRead, f.Error())
		}
	}
	refused := slices.ContainsFunc(c.Findings, func(f diagnose.Finding) bool { return f.Word == diagnose.Unknown && f.Network == "" })
	switch {
	case unread != nil && !files && !errors.Is(unread, fs.ErrNotExist):
		add(diagnose.Finding{Word: diagnose.Unknown, Text: unread.Error()})
	case errors.Is(unread, fs.ErrNotExist) && !files && !inUse && !known && !refused:
		add(diagnose.Finding{Word: diagnose.Config,
			Text: "no network configuration in " + a.flags.cniDir + ", so the runtime can start no pod there",
			Do:   "The network's agent puts one there. --cni-dir says where else runtimes look."})
	case len(c.Findings) == 0:
		add(diagnose.Finding{Word: diagnose.Unknown,
			Text: fmt.Sprintf("no configuration in %s uses host-local, and nothing is reserved in %s", a.flags.cniDir, c.Reports[0].DataDir),
			Do:   "--cni-dir and --data-dir say where else to look."})
	}
	diagnose.Sort(c.Findings)
}

// configurations returns the networks of host-local in the node's configurations, with the ranges of
// --range, and what could not be read of them.
func (a *app) configurations() (confs []cniconf.Network, unread, err error) {
	confs, unread = cniconf.ReadDir(a.flags.cniDir)
	for _, dir := range otherCNIDirs {
		if a.flags.cniDir != defaultCNIDir || !errors.Is(unread, fs.ErrNotExist) || confs != nil {
			break
		}
		if other, err := cniconf.ReadDir(dir); !errors.Is(err, fs.ErrNotExist) || other != nil {
			a.flags.cniDir, confs, unread = dir, other, err
		}
	}
	if len(a.flags.subnets) == 0 {
		return confs, unread, nil
	}
	if len(a.flags.networks) != 1 || a.flags.allNetworks() {
		return nil, nil, usagef("--range is the range of one network: name that with --network")
	}
	name, dataDir := a.flags.networks[0], a.flags.dataDir
	named := func(c cniconf.Network) bool { return c.Name == name }
	if at := slices.IndexFunc(confs, named); at >= 0 && dataDir == hostlocal.DefaultDataDir {
		dataDir = confs[at].DataDir
	}
	sets := make(map[bool][]map[string]string) // by whether they are of IPv6
	for _, subnet := range a.flags.subnets {
		v6 := strings.Contains(subnet, ":")
		sets[v6] = append(sets[v6], map[string]string{"subnet": subnet})
	}
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "type": "bridge",
		"ipam": map[string]any{"type": "host-local", "dataDir": dataDir, "ranges": slices.Collect(maps.Values(sets))}})
	if err != nil {
		return nil, nil, err
	}
	networks, err := cniconf.Parse(text)
	if err != nil {
		return nil, nil, usagef("--range %s: %w", strings.Join(a.flags.subnets, ", "), err)
	}
	return append(slices.DeleteFunc(confs, named), networks...), unread, nil
}

// A dataDir is a data directory to check. If network is not empty, only that is looked at. Named says
// that the user named it.
type dataDir struct {
	path, network string
	named         bool
}

// dataDirs returns the data directories to check: that of --data-dir, or else those of the
// configurations and host-local's default. One that has files of addresses itself is the directory of
// a network without a name, and so a network of the directory above it.
func (a *app) dataDirs(ctx context.Context, confs []cniconf.Network, given bool) (dirs []dataDir, err error) {
	paths := []string{a.flags.dataDir}
	for _, c := range confs {
		if !given && !slices.ContainsFunc(paths, func(p string) bool { return sameDirectory(p, c.DataDir) }) {
			paths = append(paths, c.DataDir)
		}
	}
	for _, path := range paths {
		list, unread := hostlocal.New(path).List(ctx) // the pass reports the error
		if slices.ContainsFunc(list.NotDirs, func(name string) bool { _, err := netip.ParseAddr(name); return err == nil }) {
			whole, err := filepath.Abs(path)
			if err != nil {
				return nil, err
			}
			dirs = append(dirs, dataDir{filepath.Dir(whole), filepath.Base(whole), false})
			if len(list.Networks) == 0 {
				continue
			}
		}
		asked := func(name string) bool {
			return len(a.flags.networks) == 0 || a.flags.allNetworks() || slices.Contains(a.flags.networks, name)
		}
		named := slices.ContainsFunc(confs, func(c cniconf.Network) bool { return asked(c.Name) && sameDirectory(c.DataDir, path) })
		if given || named || unread != nil || slices.ContainsFunc(list.Networks, asked) || len(paths) == 1 {
			dirs = append(dirs, dataDir{path: path, named: given})
		}
	}
	if len(dirs) == 0 {
		dirs = []dataDir{{path: a.flags.dataDir}}
	}
	return dirs, nil
}

func (a *app) inspect(ctx context.Context, dir dataDir, confs []cniconf.Network, s podsource.Source, opts gc.Options) (
	*diagnose.Place, error,
) {
	p := &diagnose.Place{
		DirNamed: dir.named, Named: a.flags.networks, ConfDir: a.flags.cniDir, Booted: diagnose.Booted(),
	}
	store := hostlocal.New(dir.path)
	p.Report.DataDir = dir.path
	p.Dirs, _ = store.Networks() // the pass reports the error
	networks := slices.Clone(p.Dirs)
	for _, c := range confs {
		named := p.DirNamed && c.DataDir == hostlocal.DefaultDataDir // which is mounted elsewhere here
		if named || sameDirectory(c.DataDir, dir.path) {
			p.Confs = append(p.Confs, c)
			networks = append(networks, c.Name)
		}
	}
	switch {
	case dir.network != "" && !hostlocal.ValidName(dir.network):
		p.Unread = fmt.Errorf("%s is the directory of a network without a name, and %q is no name of a network, so nothing can be released there",
			filepath.Join(dir.path, dir.network), dir.network)
		return p, nil
	case dir.network != "":
		networks = []string{dir.network}
	case len(a.flags.networks) > 0 && !a.flags.allNetworks():
		networks = slices.Clone(a.flags.networks)
	}
	slices.Sort(networks)
	networks = slices.Compact(networks)
	none := len(networks) == 0
	if none { // the sources are asked all the same
		networks = []string{gc.AllNetworks}
	}
	reconciler, err := gc.New(store, networks, s, opts)
	if err != nil {
		return nil, usageError{err}
	}
	p.Report, err = reconciler.Reconcile(ctx)
	if none { // host-local does not serve this node, and the addresses of its pods are another plugin's
		p.Report.Unreserved, p.Report.Duplicates = nil, nil
	}
	if errors.Is(err, gc.ErrRefused) {
		p.Refused = unanswered(&p.Report, err)
	} else {
		if p.Unread = err; p.Report.Networks == nil && !none { // nothing could be listed
			p.Report.Networks = networks
		}
	}
	a.notePermission(err)
	p.Look()
	return p, watchLocks(ctx, p)
}

// unanswered returns why a pass was refused: the error of each source that failed.
func unanswered(r *gc.Report, err error) (why []string) {
	for _, s := range r.Sources {
		if note, left := diagnose.LeftOut(s.Note); left && s.Name == "cri" { // the others are asked in its place
			why = append(why, "cri: "+note+": --source cri:SOCKET --allow-empty if the node really has none")
		}
		if s.Error != "" {
			why = append(why, diagnose.InFlags(s.Name+": "+s.Error))
		}
	}
	if len(why) == 0 {
		why = []string{diagnose.InFlags(err.Error())}
	}
	return why
}

// judging are the flags with which a release judges as this check did.
var judging = []string{"source", "node", "kubeconfig", "min-age", "starting-for", "runtime-request-timeout", "allow-foreign", "allow-empty",
	"require-pod"}

// configured are the flags by command that say what the ranges are, or where the configurations are.
var configured = map[string][]string{"check": {"cni-dir", "range"}, "repair": {"cni-dir"}}

// flagsOf returns those of the names that were given, as a shell reads them.
func flagsOf(given *pflag.FlagSet, names []string) (flags string) {
	given.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if several, ok := f.Value.(pflag.SliceValue); ok {
			values = several.GetSlice()
		}
		for _, v := range values {
			if slices.Contains(names, f.Name) {
				flags += " --" + f.Name + "=" + quoted(v)
			}
		}
	})
	return flags
}

// quoted quotes a word for a shell. A directory's name comes from a configuration, and users copy
// the printed command.
func quoted(word string) string {
	if regexp.MustCompile(`^[\w/.,:=@%+-]+$`).MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// watchLocks notes the locks that the same process holds for lockedFor. It does not wait where no lock is held.
func watchLocks(ctx context.Context, p *diagnose.Place) error {
	before := holders(p)
	if len(before) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("watching the lock: %w", ctx.Err())
	case <-time.After(lockedFor):
	}
	p.Locks = holders(p)
	maps.DeleteFunc(p.Locks, func(n, who string) bool { return before[n] != who })
	return nil
}

// holders says by network who holds its lock, and where.
func holders(p *diagnose.Place) map[string]string {
	held := make(map[string]string)
	for _, n := range p.Dirs {
		dir := filepath.Join(p.Report.DataDir, n)
		if who := diagnose.LockHolder(dir); who != "" {
			held[n] = fmt.Sprintf("%s holds %s for more than %v", who, filepath.Join(dir, "lock"), lockedFor)
		}
	}
	return held
}
