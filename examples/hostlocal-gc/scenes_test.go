// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The nodes of README.md and of tests. Ages of an hour and more are shown without seconds, so they do not differ
// between runs.

// scenes are the nodes by their names, as in README.md.
var scenes = map[string]func(*testing.T) *node{
	"full": fullNode, "mixed": mixedNode,
}

// fullNode has no address left, though only half of them are in use.
func fullNode(t *testing.T) *node {
	n := newNode(t)
	podnet := n.network("podnet", "10.244.1.0/28")
	n.put("podnet.conflist", `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
  {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.244.1.0/28"}},
  {"type": "portmap"}
]}
`)
	var live []pod
	for i := range 13 { // 16 less network, gateway and broadcast
		name := fmt.Sprintf("web-%d", i)
		age := 3*day + 4*time.Hour + 30*time.Minute
		if i > 6 {
			age = 2*time.Hour + 10*time.Minute
		}
		ips := podnet.add(sandbox(name), age)
		switch {
		case i == 3: // a power failure before the plugin wrote the owner
			podnet.write(ips[0], "", age)
		case i%2 == 0:
			live = append(live, pod{Namespace: "shop", Name: name, UID: name, ContainerIDs: []string{sandbox(name)}, IPs: ips})
		}
	}
	n.pods("pods.json", live...)
	return n
}

// mixedNode has a reservation for each verdict that one pass and a file of pods can give with --min-age 48h, a foreign one,
// and many leaks in a second network. An address of a live pod is not reserved.
func mixedNode(t *testing.T) *node {
	n := newNode(t)
	nw, storage := n.network("podnet", "10.244.1.0/24"), n.network("storage", "10.2.0.0/24")
	const old = 3*day + 4*time.Hour + 30*time.Minute
	for _, name := range []string{"running", "old", "mysql before", "garbage", "empty"} {
		nw.add(sandbox(name), old) // from .2 on
	}
	nw.add(sandbox("may be creating"), 2*day+4*time.Hour+30*time.Minute)
	nw.add(sandbox("fresh"), day+2*time.Hour+30*time.Minute)
	nw.add("default-web", old)
	nw.write("10.244.1.5", "one\ntwo\nthree\n", old)
	nw.write("10.244.1.6", "", old)
	for i := range 20 {
		storage.add(sandbox(fmt.Sprint(i)), old)
	}
	n.pods("pods.json",
		pod{Namespace: "shop", Name: "web", UID: "1", ContainerIDs: []string{sandbox("running")}},
		pod{Namespace: "db", Name: "mysql", UID: "2", ContainerIDs: []string{sandbox("mysql")}, IPs: []string{"10.244.1.4", "10.244.1.77"}},
		pod{Namespace: "shop", Name: "new", UID: "3", StartedAt: time.Now().Add(-3 * day)},
	)
	n.put("cut.json", `[{"name":"x","ips":["10.244.1.99"]},{"name":"y","ips":["10.24`)
	return n
}

var (
	sceneLine = regexp.MustCompile("^<!-- scene: ([a-z]+) -->\n$")
	// What differs between runs: processes that hold locks, and ages of lists.
	lockHolders = regexp.MustCompile(`process [0-9]+ \([^)]*\)`)
	ages        = regexp.MustCompile(`\([0-9]+s ago\)`)
)

// The examples of README.md and of testdata are run in order. A comment "scene: NAME" makes a new node, and each line of a console
// block that begins with "$ " is run on it. -update rewrites the outputs.
func TestExamples(t *testing.T) {
	for _, file := range []string{"README.md", "testdata/commands.txt"} {
		text := read(t, file)
		var out strings.Builder
		var n *node
		played, inside := 0, false
		for line := range strings.Lines(text) {
			scene := sceneLine.FindStringSubmatch(line)
			args, isRun := strings.CutPrefix(line, "$ hostlocal-gc ")
			switch {
			case scene != nil:
				n = scenes[scene[1]](t)
			case line == "```\n" || line == "```console\n":
				inside = line != "```\n"
			case inside && !isRun:
				continue // an output, which is made anew
			}
			out.WriteString(line)
			if isRun {
				cmd := command(t, n.dir, strings.Fields(args)...)
				both := new(strings.Builder) // as on a terminal
				cmd.Stdout, cmd.Stderr = both, both
				status := finish(t, cmd, cmd.Run).status
				out.WriteString(ages.ReplaceAllString(lockHolders.ReplaceAllString(both.String(), "process 4711 (cp)"), "(1s ago)"))
				if file != "README.md" && status != statusDone {
					fmt.Fprintf(&out, "exit status %d\n", status)
				}
				played++
			}
		}
		if played < 3 {
			t.Errorf("%s: only %d commands were found", file, played)
		}
		if *update {
			must(t, os.WriteFile(file, []byte(out.String()), 0o644))
		} else if diff := cmp.Diff(text, out.String()); diff != "" {
			t.Errorf("the outputs differ; go test . -update rewrites them (-%s +played):\n%s", file, diff)
		}
	}
}
