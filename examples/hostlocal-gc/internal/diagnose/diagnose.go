// SPDX-License-Identifier: Apache-2.0

// Package diagnose says what is wrong with a node's addresses: for the command check, and for the
// agent's log, health, metrics, JSON and page.
package diagnose

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

// The words of findings. They are a contract.
const (
	Missing    = "MISSING"    // a directory should exist
	Duplicate  = "DUPLICATE"  // two live pods have one address
	Unreserved = "UNRESERVED" // host-local may hand out the address of a live pod
	Locked     = "LOCKED"     // a process holds the plugin's lock, and each ADD waits
	ReadOnly   = "READ-ONLY"  // neither an ADD nor a release can write, or the disk is full
	Config     = "CONFIG"     // there is no network configuration, or the one in use is wrong
	Unknown    = "UNKNOWN"    // live pods, reservations, range or owners are not known
	Full       = "FULL"       // no address is left
	Leaked     = "LEAKED"     // some are leaked, and some are left
	Conflict   = "CONFLICT"   // a person has to decide about a reservation
	OK         = "OK"
)

// Words returns all words, gravest first.
func Words() []string {
	return []string{Missing, Duplicate, Unreserved, Locked, ReadOnly, Config, Unknown, Full, Leaked, Conflict, OK}
}

// A Finding is one thing that is wrong with a node's addresses, or OK. Its JSON is a contract.
type Finding struct {
	Word    string    `json:"word"`
	Network string    `json:"network,omitempty"` // none if it is about more than one
	Text    string    `json:"text"`              // for people; names no pod
	Items   []string  `json:"items,omitempty"`   // addresses with their pods, or errors
	Do      string    `json:"do,omitempty"`      // what a person can do
	Run     string    `json:"run,omitempty"`     // a command that mends it
	Since   time.Time `json:"since,omitzero"`    // when an agent saw it first
	late    bool      // it is less grave than all that is known to be wrong
}

// longest is the largest number of characters in a line.
const longest = 160

// Line returns the finding in one line of at most 160 characters.
func (f Finding) Line() string {
	line := f.Word + ": "
	if f.Network != "" {
		line += f.Network + ": "
	}
	line = term.Clean(line + f.Text)
	if runes := []rune(line); len(runes) > longest {
		line = string(runes[:longest-1]) + "…"
	}
	return line
}

// Live reports whether live pods have lost their addresses, or may lose them, or new pods get none.
func (f Finding) Live() bool {
	return (f.Word == Missing || f.Word == Config) && f.Items != nil ||
		slices.Contains([]string{Duplicate, Unreserved, Full, Conflict}, f.Word)
}

// Sort puts the gravest findings first. What is not known of one network is less grave than all that is
// known to be wrong.
func Sort(all []Finding) {
	rank := func(f Finding) int {
		if f.late || f.Word == Unknown && f.Network != "" {
			return 2*slices.Index(Words(), Conflict) + 1
		}
		return 2 * slices.Index(Words(), f.Word)
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(rank(a), rank(b)) })
}

// A Place is a data directory with what was read of it.
type Place struct {
	// Report is that of a pass. Refused are the errors of its sources if it judged nothing.
	Report  gc.Report
	Refused []string
	// Unread says why not all reservations could be read.
	Unread error
	// Confs are the networks that configurations have with this data directory. They were looked for
	// in ConfDir; empty if nobody looked.
	Confs   []cniconf.Network
	ConfDir string
	// Named are the networks that the user named, and DirNamed says that he named the directory.
	Named    []string
	DirNamed bool
	// Dirs are the networks that have a directory.
	Dirs []string
	// Locks say by network who holds its lock for long.
	Locks map[string]string
	// Command returns a command line by the command's name, with the flags that make it judge as this pass did,
	// but for --network. The agent has none.
	Command func(name string) string
	// DryRun says that an agent keeps what leaked.
	DryRun bool
	// Booted is when the node booted; zero if unknown.
	Booted time.Time

	readOnly, fullDisk string         // directories
	zeroed             map[string]int // files of NUL bytes, by network
}

func (p *Place) command(name, network string) string {
	switch {
	case p.Command == nil:
		return ""
	case network == "":
		return p.Command(name)
	}
	return p.Command(name) + " --network " + network
}

// release adds what releases a network's leaks to a finding, in text or as a command.
func (p *Place) release(f Finding) Finding {
	if f.Run = p.command("release", f.Network); p.DryRun {
		f.Run, f.Do = "", "Remove --dry-run."
	}
	return f
}

// repair adds the command that reserves addresses again to a finding, or what that needs.
func (p *Place) repair(f Finding) Finding {
	if f.Run = p.command("repair", ""); !nodeShows(&p.Report) {
		f.Run, f.Do = "", f.Do+" It needs --source netns and --source cnicache, as root and on the node."
	}
	return f
}

// Findings returns what is wrong in the places, gravest first. An address that is reserved in any of
// them counts as reserved.
func Findings(places []*Place) (all []Finding) {
	for _, p := range places {
		all = append(all, p.findings(places)...)
	}
	Sort(all)
	return all
}

func (p *Place) findings(places []*Place) (all []Finding) {
	unreserved := p.unreserved(places)
	for _, n := range p.Report.Networks {
		all = append(all, p.network(n, unreserved, places)...)
	}
	unnamed := make(map[string]int)
	for e := range Entries(&p.Report) {
		if e.Reason == gc.NetworkNotNamed {
			unnamed[e.Network]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unnamed)) {
		all = append(all, Finding{Word: Leaked, Network: name, Run: p.command("plan", name), // a release may take another runtime's
			Text: plural(unnamed[name], "address", "addresses") + " without an owner that these sources know, in a network that is not named",
			Do:   "--network names it. Never release there if another runtime, such as podman, uses it."})
	}
	if n := len(p.Report.Duplicates); n > 0 {
		var items []string
		for _, d := range p.Report.Duplicates {
			var names []string
			for _, pod := range d.Pods {
				names = append(names, PodName(pod))
			}
			slices.Sort(names)
			items = append(items, d.IP.String()+": "+strings.Join(names, ", "))
		}
		all = append(all, Finding{Word: Duplicate, Items: items,
			Text: plural(n, "address belongs to several live pods", "addresses belong to several live pods each"),
			Do:   "Delete all pods of an address but one, so that they are recreated with other addresses."})
	}
	lost := slices.ContainsFunc(all, func(f Finding) bool { return f.Word == Missing && f.Items != nil })
	if n := len(unreserved); n > 0 && !lost {
		f := p.repair(Finding{Word: Unreserved, Items: unreserved,
			Text: plural(n, "address of a live pod is not reserved, so host-local may hand it out again",
				"addresses of live pods are not reserved, so host-local may hand them out again"),
			Do: "Somebody removed files of host-local, or this is not the data directory that it uses. Mend that. hostlocal-gc repair reserves " +
				"what it can again; delete the other pods, so that they are recreated."})
		if len(places) > 1 && p.ranges("") == nil { // they may be of another one
			f.Run, f.Do = "", f.Do+" --data-dir says in which directory."
		}
		all = append(all, f)
	}
	if p.Report.DataDirMissing && p.DirNamed && !lost {
		all = append(all, Finding{Word: Missing, Text: "there is no data directory " + p.Report.DataDir,
			Do: "host-local makes it with its first ADD. If pods have addresses here, it is not mounted, or --data-dir is wrong."})
	}
	if len(p.Refused) > 0 {
		all = append(all, Finding{Word: Unknown, Text: "the live pods can't be determined: " + p.Refused[0], Items: p.Refused,
			Do: "Nothing is judged or released before that source answers: is it up, is its socket mounted, may this process ask it?"})
	}
	if p.Unread != nil {
		lines := strings.Split(p.Unread.Error(), "\n")
		f := Finding{Word: Unknown, Text: "not all reservations can be read: " + lines[0], Items: lines, late: len(p.Report.Reservations) > 0}
		if len(p.Report.Networks) == 1 && p.Report.Networks[0] != gc.AllNetworks {
			f.Network = p.Report.Networks[0]
		}
		all = append(all, f)
	}
	if p.readOnly != "" {
		n := 0
		for e := range Entries(&p.Report) {
			if e.Verdict == gc.Leaked || e.Reason == gc.ReleaseFailed {
				n++
			}
		}
		all = append(all, Finding{Word: ReadOnly, late: n == 0,
			Text: fmt.Sprintf("%s is mounted read-only, so nothing can be released: %d leaked", p.readOnly, n),
			Do:   "If it is read-only on the node, too, no ADD can reserve an address. Else mount it writable here."})
	}
	if p.fullDisk != "" {
		all = append(all, Finding{Word: ReadOnly, Text: "the file system of " + p.fullDisk + " is full, so no ADD can reserve an address",
			Do: "Free space or inodes there: df and df -i show which of them is used up."})
	}
	return all
}

// Entries returns the reservations of a report.
func Entries(r *gc.Report) iter.Seq[*gc.Entry] {
	return func(yield func(*gc.Entry) bool) {
		for i := range r.Reservations {
			if !yield(&r.Reservations[i]) {
				return
			}
		}
	}
}

// ranges returns those of a network, or of all.
func (p *Place) ranges(network string) (all iprange.Set) {
	for _, c := range p.Confs {
		if network == "" || c.Name == network {
			all = append(all, slices.Concat(c.Ranges...)...)
		}
	}
	return all
}

func (p *Place) network(name string, unreserved []string, places []*Place) (all []Finding) {
	all = p.elsewhere(name, places)
	if slices.Contains(p.Report.Missing, name) {
		if len(all) == 0 {
			all = p.missing(name, unreserved)
		}
		return all
	}
	if holder := p.Locks[name]; holder != "" {
		all = append(all, Finding{Word: Locked, Network: name, Text: holder,
			Do: "Each ADD and DEL of the network waits for it: find out what the process does, or end it."})
	}
	c := p.count(name)
	all = append(all, p.undecided(c)...)
	full := c.size > 0 && c.left <= 0
	switch {
	case len(p.Refused) > 0:
		if full {
			all = append(all, Finding{Word: Full, Network: name, Text: c.used() + ", and it is not known how many are leaked"})
		}
	case full:
		all = append(all, p.full(c))
		if others := c.n[leaked] - c.tight[leaked]; others > 0 && c.tight[leaked] == 0 {
			all = append(all, p.release(Finding{Word: Leaked, Network: name,
				Text: fmt.Sprintf("%d leaked in another range set than the one that is full", others)}))
		}
	case c.n[leaked] > 0:
		all = append(all, p.release(Finding{Word: Leaked, Network: name, Text: c.used() + c.parts(c.n)}))
	case c.n[foreign] > 0 && c.askable(&p.Report):
		all = append(all, Finding{Word: Unknown, Network: name, Text: c.used() + c.parts(c.n), Items: c.items[foreign], Do: c.ask(&p.Report)})
	case c.size == 0 && c.reserved == 0 && (p.Unread != nil || !p.asked(name)): // nothing to say, or what a release left
	case c.size == 0:
		all = append(all, p.noRange(c))
	case len(all) == 0 && p.Unread == nil:
		all = append(all, Finding{Word: OK, Network: name, Text: c.used() + c.parts(c.n)})
	}
	return all
}

// asked reports whether the user or a configuration named a network.
func (p *Place) asked(name string) bool { return slices.Contains(p.Named, name) || p.configured(name) }

func (p *Place) configured(name string) bool {
	return slices.ContainsFunc(p.Confs, func(n cniconf.Network) bool { return n.Name == name })
}

// elsewhere returns the finding about a network whose ranges have addresses in use that are reserved where
// no configuration has a network.
func (p *Place) elsewhere(name string, places []*Place) []Finding {
	ours, own := p.ranges(name), make(map[netip.Addr]bool)
	for e := range Entries(&p.Report) {
		if e.Network == name {
			own[e.IP] = true
		}
	}
	var items, dirs []string
	for _, other := range places {
		for e := range Entries(&other.Report) {
			if e.Verdict != gc.InUse || own[e.IP] || !ours.Has(e.IP) || other.configured(e.Network) {
				continue
			}
			item := e.IP.String()
			if e.Pod != nil {
				item += ": " + PodName(e.Pod)
			}
			items = append(items, item)
			dirs = append(dirs, filepath.Join(other.Report.DataDir, e.Network))
		}
	}
	if items == nil {
		return nil
	}
	slices.Sort(dirs)
	there := term.Few(slices.Compact(dirs), 2)
	return []Finding{{Word: Config, Network: name, Items: items,
		Text: plural(len(items), "address in use of its range is reserved in "+there+", so it may hand it out again",
			"addresses in use of its range are reserved in "+there+", so it may hand them out again"),
		Do: "Was the network renamed, or its data directory changed? Cordon the node, and change that back, or delete these pods, " +
			"so that they are recreated."}}
}

// noRange returns the finding about a network whose range is not known.
func (p *Place) noRange(c *tally) Finding {
	why := "; its range is not known"
	if p.configured(c.network) {
		why = "; its range is set at run time and not known"
	} else if p.ConfDir != "" {
		why += fmt.Sprintf(": no configuration in %s has it in %s", p.ConfDir, p.Report.DataDir)
	}
	return Finding{Word: Unknown, Network: c.network, Text: c.used() + c.parts(c.n) + why, Do: "Say what the range is: --range SUBNET."}
}

// undecided returns the findings about reservations that a person has to decide about.
func (p *Place) undecided(c *tally) (all []Finding) {
	if n := len(c.items[inConflict]); n > 0 {
		all = append(all, Finding{Word: Conflict, Network: c.network, Items: c.items[inConflict],
			Text: plural(n, "reservation is", "reservations are") + " claimed by another pod than the owner, and kept",
			Do:   "Delete the pod that is named, so that it is recreated with another address."})
	}
	if n := c.n[malformed]; n > 0 {
		text := plural(n, "file names no owner, and is kept", "files name no owner, and are kept")
		if zeroed := p.zeroed[c.network]; zeroed > 0 {
			text = fmt.Sprintf("%s: %d of NUL bytes, as a power loss leaves them", text, zeroed)
		}
		all = append(all, Finding{Word: Conflict, Network: c.network, Text: text, Run: p.command("remove-malformed", c.network),
			Do: "hostlocal-gc remove-malformed shows them, and with --yes removes those that no live pod may hold."})
	}
	return all
}

// missing returns the finding about a network without a directory. The first ADD creates the
// directory, so this is fine unless something contradicts it.
func (p *Place) missing(name string, unreserved []string) []Finding {
	var inUse []string // networks
	taken := false     // its range, by another network
	for e := range Entries(&p.Report) {
		taken = taken || p.ranges(name).Has(e.IP)
		if e.Verdict == gc.InUse && !slices.Contains(inUse, e.Network) {
			inUse = append(inUse, e.Network)
		}
	}
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.Dirs, inUse))))
	there := "it holds " + cmp.Or(term.Few(names, 5), "no network")
	path := filepath.Join(p.Report.DataDir, name)
	if p.Report.DataDirMissing {
		path = p.Report.DataDir
	}
	f := Finding{Word: Missing, Network: name}
	switch {
	case p.Unread != nil: // which says more
		return nil
	case len(unreserved) > 0:
		f.Text = fmt.Sprintf("there is no %s, while live pods have %s reserved nowhere; %s", path,
			plural(len(unreserved), "address that is", "addresses that are"), there)
		f.Items = unreserved
		f.Do = "Are --network and --data-dir right, and is the directory mounted? If it was removed, hostlocal-gc repair reserves them again."
		f = p.repair(f)
	case p.ranges(name) != nil && !(taken && slices.Contains(p.Named, name)): // else it may be misspelt
		f.Word, f.Text = OK, "nothing was ever reserved in it"
	case slices.Contains(p.Named, name), inUse != nil && len(p.Report.Missing) == len(p.Report.Networks):
		f.Text = fmt.Sprintf("it has no directory in %s; %s", p.Report.DataDir, there)
		f.Do = "Is --network the name in the CNI configuration? If it just has no pod here, its range says so: " +
			"--range, or the agent's --cni-conf."
	default:
		f.Word, f.Text = Unknown, "nothing was ever reserved in it, and its range is not known"
	}
	return []Finding{f}
}

// unreserved returns the addresses of live pods that no file reserves and that host-local may hand
// out, with their pods.
func (p *Place) unreserved(places []*Place) (all []string) {
	reserved := make(map[netip.Addr]bool)
	for _, other := range places {
		for e := range Entries(&other.Report) {
			reserved[e.IP] = true
		}
	}
	for _, u := range p.Report.Unreserved {
		if !reserved[u.IP] && u.AtRisk(p.ranges("")) {
			all = append(all, u.IP.String()+": "+PodName(u.Pods[0]))
		}
	}
	return all
}

// PodName names a pod for people, and says where its source found it.
func PodName(p *gc.Pod) string {
	name := p.String()
	if p.From() == "" || p.From() == name {
		return name
	}
	return name + " (" + p.From() + ")"
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
