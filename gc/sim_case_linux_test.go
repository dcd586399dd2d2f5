// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A simCase tells a simulation as a case of testdata/cases. A case can't have all: a file that changes while a pass releases changes
// before or after that, a pass that is cancelled goes on, and no node is suspended.
type simCase struct {
	done  []string                     // the lines up to the last pass
	parts [4][]string                  // the next ones: before a pass, when the sources are asked, when they are asked again, after it
	at    time.Duration                // until when they last
	said  map[simKind]podsource.Answer // the last answers
}

// part returns the part of a pass in which an operation happens now.
func (s *simulation) part() int {
	switch p := s.pass; {
	case p == nil:
		return 0
	case p.asking || p.looks == 0:
		return p.looks
	default:
		return min(p.looks+1, 2)
	}
}

// line tells what happens now.
func (s *simulation) line(format string, args ...any) {
	part := s.wait()
	s.told.parts[part] = append(s.told.parts[part], fmt.Sprintf(format, args...))
}

// wait tells how much time has passed, and returns the part that is under way.
func (s *simulation) wait() (part int) {
	c, part := &s.told, s.part()
	if c.at < s.now {
		c.parts[part] = append(c.parts[part], fmt.Sprint("wait ", s.now-c.at))
		c.at = s.now
	}
	return part
}

// trace tells in a comment what a case does not say.
func (s *simulation) trace(format string, args ...any) { s.line("# "+format, args...) }

// boot boots the node, whose agent is started d later.
func (s *simulation) boot(d time.Duration) {
	if s.config.noBoot {
		s.line("boot 0s")
	} else {
		s.line("boot %v", d)
		s.told.at += d
	}
	s.now += d
}

// tellFile tells that a file was made or overwritten.
func (s *simulation) tellFile(a simAddress, age time.Duration, owner *simSandbox) {
	content, _ := os.ReadFile(s.path(a)) // else it is empty
	if owner != nil && strings.HasPrefix(string(content), owner.id) {
		s.line("reserve %s %s %v # %s", s.name(a), owner.id, age, owner.podName)
	} else {
		s.line("file %s %v %q", s.name(a), age, content)
	}
}

// tellAnswer tells what a source says, as far as it differs from what it said before.
func (s *simulation) tellAnswer(k simKind, a podsource.Answer) {
	c, part := &s.told, s.wait()
	if part == 1 && len(c.parts[1]) == 0 {
		part = 0 // nothing has changed since the pass began
	}
	say := func(format string, args ...any) {
		c.parts[part] = append(c.parts[part], strings.TrimSpace(fmt.Sprintf("%s "+format, append([]any{k}, args...)...)))
	}
	last, ok := c.said[k]
	if c.said[k] = a; !ok {
		last = k.declared()
		if say(""); s.config.allowEmpty {
			say("authoritative")
		}
	}
	if !slices.Equal(a.Networks, last.Networks) {
		say("speaks %s", cmp.Or(strings.Join(a.Networks, ","), "none"))
	}
	if !slices.Equal(a.SeesADDs, last.SeesADDs) {
		say("adds %s", cmp.Or(strings.Join(a.SeesADDs, ","), "none"))
	}
	if a.Supplementary && !last.Supplementary {
		say("supplementary")
	}
	switch {
	case s.pass.future:
		say("dated -24h")
	case !a.AsOf.IsZero():
		say("dated %v", s.reading().now.Sub(a.AsOf))
	case !last.AsOf.IsZero():
		say("dated 0s")
	}
	if reflect.DeepEqual(a.Pods, last.Pods) && reflect.DeepEqual(a.Cache, last.Cache) {
		return
	}
	if len(last.Pods) > 0 || last.Cache != nil && len(last.Cache.Entries) > 0 {
		say("empty")
	}
	live := make(map[string]bool)
	for _, p := range a.Pods {
		say("%s", s.keys(p))
		live[p.Network+"/"+strings.Join(p.ContainerIDs, "")] = true
	}
	if a.Cache == nil || len(a.Cache.Entries) == 0 {
		return
	}
	say("since %v", s.wall().Sub(a.Cache.Since))
	for _, e := range a.Cache.Entries {
		if name := e.Network + "/" + e.ContainerID; !live[name] {
			say("ended %s", name)
		}
	}
}

// keys returns a pod as a line of a source has it.
func (s *simulation) keys(p podsource.Pod) (all string) {
	ago := func(at time.Time) string {
		if at.IsZero() {
			return ""
		}
		return s.wall().Sub(at).String()
	}
	yes := map[bool]string{true: "yes"}
	for _, key := range [][2]string{{"name", p.Name}, {"uid", string(p.UID)}, {"id", strings.Join(p.ContainerIDs, ",")},
		{"ip", strings.Trim(strings.ReplaceAll(fmt.Sprint(p.IPs), " ", ","), "[]")}, {"network", p.Network}, {"started", ago(p.StartedAt)},
		{"more", yes[p.MoreIPs]}, {"host", yes[p.HostNetwork]}} {
		if key[1] != "" {
			all += key[0] + "=" + key[1] + " "
		}
	}
	if p.Finished {
		all += "finished=" + ago(p.FinishedAt)
	}
	return all
}

// tellPass tells which addresses the pass that is under way must keep, and in comments what it reports.
func (s *simulation) tellPass(o occasion, report *Report, err error) {
	c := &s.told
	s.wait()
	if err != nil { // whatever the reason
		c.parts[0] = append(c.parts[0], fmt.Sprint(s.config.sources[0], " fails"))
		c.parts[3] = append(c.parts[3], fmt.Sprint(s.config.sources[0], " answers"))
	}
	prefixes := []string{"", "asked: ", "again: "}
	if s.pass.looks < 2 {
		prefixes[2] = prefixes[1]
	}
	for i, prefix := range prefixes {
		for _, line := range c.parts[i] {
			if !strings.HasPrefix(line, "#") && !(o.hook && strings.HasPrefix(line, "wait")) {
				line = prefix + line
			}
			c.done = append(c.done, line)
		}
	}
	c.done = append(c.done, cmp.Or(map[occasion]string{{hook: true}: "hook", {hook: true, noADD: true}: "hook no-add"}[o], "pass"))
	for _, e := range report.Reservations {
		c.done = append(c.done, fmt.Sprintf("  # %s/%s %s %s", e.Network, e.IP, e.Verdict, e.Reason))
	}
	if err != nil {
		c.done = append(c.done, "  error # "+strings.ReplaceAll(err.Error(), "\n", " "))
	}
	keeps := "  keeps"
	for _, b := range s.sandboxes {
		for _, a := range b.addrs {
			if b.alive {
				keeps += " " + s.name(a)
			}
		}
	}
	c.done, c.parts = append(c.done, keeps), [4][]string{c.parts[3]}
}

// text returns the case.
func (s *simulation) text() string {
	var ids []string
	for i := range s.serial + 1 {
		name := fmt.Sprintf("sandbox%d", i)
		ids = append(ids, hex64(name), "<"+name+">")
	}
	return strings.NewReplacer(ids...).Replace(strings.Join(slices.Concat(s.told.done, s.told.parts[0]), "\n") + "\n")
}

// SimulatedCase returns the case of a seed that does not fail.
func SimulatedCase(t *testing.T, seed uint64) string {
	config, script := simScript(seed)
	s := simRun(simDir(t), config, script)
	must(t, s.broken)
	return s.text()
}
