// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A node is the node of one case.
type node struct {
	t        *testing.T
	dir      *gctest.Dir
	clocks   *gc.Clocks
	opts     gc.Options
	networks []string
	r        *gc.Reconciler // nil before a process begins
	sources  []*source      // in the order in which the case names them
	later    map[string][]line
	broken   map[string]bool // paths of files that can't be read, and whether their status can
	answered podsource.Answer
	looks    int
	looking  bool  // the files are listed, or the sources asked
	err      error // of a time, or of a line that came later
}

const network = "podnet"

func newNode(t *testing.T) *node {
	return &node{t: t, dir: gctest.NewDir(t), clocks: gc.NewClocks(), opts: gc.Options{AllowForeign: []string{}}, networks: []string{network},
		later: make(map[string][]line), broken: make(map[string]bool)}
}

// run runs a case.
func (n *node) run(all []line) error {
	passed := len(all) == 0 // the last line was a pass
	for i, l := range all {
		if l.indented && !passed {
			return fmt.Errorf("%d: it is not below a pass", l.at)
		} else if l.indented {
			continue
		}
		passed = l.words[0] == "pass" || l.words[0] == "hook"
		want := all[i+1:]
		if end := slices.IndexFunc(want, func(l line) bool { return !l.indented }); end >= 0 {
			want = want[:end]
		}
		if err := cmp.Or(n.do(l, want), n.err); err != nil {
			return fmt.Errorf("%d: %s: %w", l.at, strings.TrimSpace(strings.Join(l.words, " ")+" "+l.row), err)
		}
	}
	if !passed {
		return fmt.Errorf("%d: a case does not end with a pass", all[0].at)
	}
	return nil
}

// do does what a line says.
func (n *node) do(l line, want []line) error {
	verb, args := l.words[0], l.words[1:]
	if kind(verb) != nil {
		return n.list(verb, args)
	}
	need, ok := map[string]int{"reserve": 3, "file": -3, "chmod": 1, "unreadable": -1, "remove": 1, "wait": 1, "clock": 1, "boot": 1,
		"restart": 0, "options": -1, "pass": 0, "hook": 0, "listed:": -1, "asked:": -1, "again:": -1}[verb] // at least, if it is negative
	switch {
	case !ok || n.looking && (verb == "pass" || verb == "hook"):
		return fmt.Errorf("no line begins with %q here, and it is no source", verb)
	case need >= 0 && len(args) != need && strings.Join(l.words, " ") != "hook no-add", len(args) < -need:
		return fmt.Errorf("%s is followed by %d words", verb, max(need, -need))
	}
	first := strings.Join(args[:min(1, len(args))], "")
	path := n.path(first)
	in, name := filepath.Split(strings.TrimPrefix(path, n.dir.Store.DataDir()))
	switch verb {
	case "reserve":
		n.dir.Reserve(in, name, args[1], n.ago(args[2]))
	case "file":
		content, err := strconv.Unquote(strings.Join(args[2:], " "))
		n.dir.Write(in, name, content, n.ago(args[1]))
		return err
	case "chmod":
		return os.Chmod(path, 0o644)
	case "unreadable":
		n.broken[path] = len(args) == 1
	case "remove":
		err := os.Rename(path, filepath.Join(n.t.TempDir(), name)) // so that its inode is not used again
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	case "wait":
		wait(n.duration(first))
	case "clock":
		n.clocks.Step(n.duration(first))
	case "boot": // and the agent is started some time later
		up := n.duration(first)
		wait(max(up, 0))
		n.r = nil
		n.clocks.Boot(up)
		if n.opts.Memory != "" {
			return os.RemoveAll(n.opts.Memory)
		}
	case "restart":
		n.r = nil
	case "options":
		return n.options(args)
	case "listed:", "asked:", "again:":
		n.later[verb] = append(n.later[verb], line{at: l.at, words: args})
	case "pass", "hook":
		return n.pass(l.words, want)
	}
	return nil
}

// path returns the path of an address, which may have a network before it.
func (n *node) path(address string) string {
	in, ip, ok := strings.Cut(address, "/")
	if !ok {
		in, ip = network, address
	}
	return filepath.Join(n.dir.Store.DataDir(), in, ip)
}

func (n *node) duration(text string) time.Duration {
	n.t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil && n.err == nil {
		n.err = fmt.Errorf("%q is no time or age, such as 24h or 7m30s", text)
	}
	return d
}

// ago returns the age by the real clock of what was made so long ago by that of the node.
func (n *node) ago(text string) time.Duration {
	return time.Since(n.clocks.Wall().Add(-n.duration(text)))
}

func (n *node) options(args []string) error {
	durations := map[string]*time.Duration{
		"min-age": &n.opts.MinAge, "starting-for": &n.opts.StartingFor, "request-timeout": &n.opts.RuntimeRequestTimeout}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		if (key == "memory" || key == "dry-run") && value != "yes" {
			return fmt.Errorf("%s may only be yes", key)
		}
		switch key {
		case "networks":
			n.networks = strings.Split(value, ",")
		case "min-age", "starting-for", "request-timeout":
			*durations[key] = n.duration(value)
		case "own": // NETWORK/ID/INTERFACE
			of := append(strings.Split(value, "/"), "", "")
			n.opts.OwnADD = podsource.Attachment{Network: of[0], ContainerID: of[1], IfName: of[2]}
		case "allow":
			n.opts.AllowForeign = strings.Split(value, ",")
		case "memory":
			n.opts.Memory = filepath.Join(n.t.TempDir(), "memory")
		case "dry-run":
			n.opts.DryRun = true
		default:
			return fmt.Errorf("there is no option %s", key)
		}
	}
	n.r = nil
	return nil
}

// pass runs a pass, or the hook, and compares its report with the indented lines.
func (n *node) pass(words []string, want []line) error {
	n.t.Helper()
	if n.err != nil {
		return n.err
	}
	if n.r == nil {
		n.opts.SourceTimeout, n.opts.StartupTimeout = 24*time.Hour, 2*time.Second // enough for two looks
		n.r = gc.NewReconciler(n.t, n.dir.Store, n.networks, n, n.opts, n.clocks)
		gc.ChangeList(n.r, func() { n.happens("listed:") }, func(r *hostlocal.Reservation) {
			if hasStatus, is := n.broken[n.path(r.Network+"/"+r.IP.String())]; is {
				r.Owner, r.ContainerID, r.IfName, r.Err = hostlocal.Unreadable, "", "", errors.New("it can't be read")
				if !hasStatus {
					r.ReservedAt = time.Time{}
				}
			}
		})
	}
	n.looks = 0
	var report gc.Report
	var err error
	switch {
	case words[0] == "pass":
		report, err = n.r.Reconcile(n.t.Context())
	case len(words) > 1:
		report, err = n.r.AtStartup(n.t.Context(), gc.NoADDInFlight)
	default:
		report, err = n.r.AtStartup(n.t.Context())
	}
	for n.looks < 2 { // what was to happen when they are asked
		_, _ = n.Pods(n.t.Context())
	}
	clear(n.later)
	n.forget()
	if n.err != nil {
		return n.err
	}
	var expected, got []string
	by := make(map[string]string) // the end of a line about an address: which pod its reason is about
	for _, l := range want {
		text := strings.Join(l.words, " ")
		expected = append(expected, text)
		if l.words[0] == "error" && err == nil {
			got = append(got, "no error")
		} else if l.words[0] == "keeps" || l.words[0] == "frees" { // and the others may be anything
			report.Reservations = nil
			got = append(got, strings.Join(slices.DeleteFunc(l.words, func(word string) bool {
				_, err := os.Lstat(n.path(word))
				return word != l.words[0] && (err == nil) == (l.words[0] == "frees")
			}), " "))
		} else if is, ok := fact(l.words, report, err); ok {
			wanted := strings.Join(l.words[1:], " ")
			if (l.words[0] == "error" || l.words[0] == "note") && strings.Contains(is, wanted) {
				is = wanted
			}
			got = append(got, strings.TrimSpace(l.words[0]+" "+is))
		} else if len(l.words) > 4 && l.words[3] == "by" {
			by[l.words[0]] = strings.Join(l.words[4:], " ")
		}
		if l.words[0] == "error" {
			err = nil
		}
	}
	if err != nil {
		got = append(got, "error "+err.Error())
	}
	for _, e := range report.Reservations {
		key := e.IP.String()
		if e.Network != network {
			key = e.Network + "/" + key
		}
		text := fmt.Sprint(key, " ", e.Verdict, " ", e.Reason)
		if by[key] != "" && e.Pod != nil && strings.Contains(e.Pod.String()+" "+e.Pod.From(), by[key]) {
			text += " by " + by[key]
		} else if by[key] != "" {
			text += " by " + strings.TrimPrefix(fmt.Sprintf("%+v", e.Pod), "<nil>")
		}
		got = append(got, text)
		_, err := os.Lstat(n.path(e.Network + "/" + e.IP.String()))
		if gone := e.Verdict == gc.Released || e.Verdict == gc.Gone; gone == (err == nil) {
			return fmt.Errorf("%s, and its file is there: %t", text, err == nil)
		}
	}
	slices.Sort(expected)
	slices.Sort(got)
	if diff := gocmp.Diff(strings.Join(expected, "\n"), strings.Join(got, "\n")); diff != "" {
		return fmt.Errorf("it reports, below (-want +got):\n%s", diff)
	}
	return nil
}

// fact returns what a line of a case is about besides reservations. The line has its words, or some of an error's or a note's.
func fact(words []string, r gc.Report, err error) (is string, ok bool) {
	switch words[0] {
	case "error":
		is = fmt.Sprint(err)
	case "looks":
		is = strconv.Itoa(r.Looks)
	case "next":
		if is = "never"; !r.NextCheck.IsZero() {
			is = r.NextCheck.Sub(r.Started).String()
		}
	case "memory":
		if is = "used"; r.Memory != "" {
			is = r.Memory
		}
	case "duplicates":
		is = claims(r.Duplicates, 2)
	case "unreserved":
		is = claims(r.Unreserved, 1)
	case "note":
		is = "a source that is not there"
		for _, s := range r.Sources {
			if s.Name == words[1] {
				is = s.Name + " " + cmp.Or(s.Note, "nothing")
			}
		}
	}
	return is, is != ""
}

// claims returns the addresses, with their number of pods if that is not the usual one, or none.
func claims(all []gc.Claim, pods int) string {
	if len(all) == 0 {
		return "none"
	}
	var ips []string
	for i, c := range all {
		if ips = append(ips, c.IP.String()); len(c.Pods) != pods {
			ips[i] += fmt.Sprint("*", len(c.Pods))
		}
	}
	return strings.Join(ips, " ")
}
