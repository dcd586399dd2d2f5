// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
)

// A hazard is a data directory, a list of pods, and the expected result. Paths are below the data directory.
type hazard struct {
	what                  string
	files                 map[string]string
	ages                  map[string]time.Duration // of files
	pods                  []string                 // of pods.json
	listAge               time.Duration            // of pods.json
	torn, refuse          bool                     // pods.json ends in the middle; the collector must refuse
	keep, release, others []string                 // reservations that live, that leaked, and files that no collector may touch
	more                  func(dir string) error   // to the network's directory
}

const network = "podnet"

// hazards returns the cases of a script of the library, and those that a script can't say.
func hazards(t *testing.T) (all []hazard) {
	text, err := os.ReadFile("../../gc/testdata/cases/01-plain-list.txt")
	if err != nil {
		t.Fatal(err)
	}
	id := func(name string) string { return gctest.ContainerID(strings.Trim(name, "<>")) }
	var alone string
	for _, c := range strings.Split(regexp.MustCompile(`<\w+>`).ReplaceAllStringFunc(string(text), id), "\n---\n") {
		lines, table, _ := strings.Cut(c, "\n| ")
		rows := strings.Split(strings.TrimSpace(table), "\n| ")
		for _, row := range rows[1:] {
			cells, what, _ := strings.Cut(row, "# ")
			values, body := strings.Split(cells, "|"), lines
			for i, column := range strings.Split(rows[0], " | ") {
				body = strings.ReplaceAll(body, "$"+column, values[i])
			}
			if all = append(all, parse(t, what, body)); alone == "" {
				alone = body
			}
		}
	}
	link := parse(t, "a link whose name is an address (hazard 17)", alone+"\nfile kept/10.0.0.9 1h \"linked\"")
	link.others = append(link.others, "podnet/10.0.0.9")
	link.more = func(dir string) error { return os.Symlink("../kept/10.0.0.9", filepath.Join(dir, "10.0.0.9")) }
	pipe := parse(t, "a pipe whose name is an address (hazard 17)", alone)
	pipe.others = append(pipe.others, "podnet/10.0.0.3")
	pipe.more = func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "10.0.0.3"), 0o600) }
	locked := parse(t, "somebody holds the plugin's lock (hazard 18)", alone)
	locked.keep, locked.release, locked.refuse = slices.Concat(locked.keep, locked.release), nil, true
	locked.more = func(dir string) error { // until the test ends
		unlock, err := lock(dir)
		t.Cleanup(func() { _ = unlock() })
		return err
	}
	return append(all, link, pipe, locked)
}

// podFields are those of pods.json, by the key of a script.
var podFields = map[string]string{"name": `"namespace":"default","name":%q,"uid":%[1]q`, "id": `,"containerIDs":[%q]`, "ip": `,"ips":[%q]`,
	"started": `,"startedAt":%q`, "finished": `,"finished":true,"finishedAt":%q`}

// parse returns the case of a row. gc/testdata/cases/README.md describes its lines.
func parse(t *testing.T, what, lines string) hazard {
	h := hazard{what: what, files: make(map[string]string), ages: make(map[string]time.Duration)}
	path := func(address string) string {
		if strings.Contains(address, "/") {
			return address
		}
		return network + "/" + address
	}
	age := func(text string) time.Duration {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, line := range strings.FieldsFunc("file lock 1h \"\"\n"+lines, func(r rune) bool { return r == '\n' || r == ';' }) {
		words := append(strings.Fields(line), "#")
		switch words[0] {
		case "#", "pass":
		case "error":
			h.refuse = true
		case "reserve":
			h.files[path(words[1])], h.ages[path(words[1])] = words[2]+"\r\neth0", age(words[3])
		case "file":
			content, err := strconv.Unquote(words[3])
			if h.files[path(words[1])], h.ages[path(words[1])] = content, age(words[2]); err != nil {
				t.Fatal(line, err)
			}
		case "plain":
			pod := ""
			for _, word := range words[1:] {
				key, value, ok := strings.Cut(word, "=")
				if key == "started" || key == "finished" {
					value = time.Now().Add(-age(value)).UTC().Format(time.RFC3339)
				}
				if ok {
					pod += fmt.Sprintf(podFields[key], value)
				}
			}
			switch words[1] {
			case "#":
			case "empty":
				h.pods = nil
			case "fails":
				h.torn = true
			case "dated":
				h.listAge = age(words[2])
			default:
				h.pods = append(h.pods, "{"+pod+"}")
			}
		default:
			if words[1] == "released" {
				h.release = append(h.release, path(words[0]))
			} else if words[1] != "malformed" {
				h.keep = append(h.keep, path(words[0]))
			}
		}
	}
	for name := range h.files {
		if !slices.Contains(h.keep, name) && !slices.Contains(h.release, name) {
			h.others = append(h.others, name)
		}
	}
	return h
}
