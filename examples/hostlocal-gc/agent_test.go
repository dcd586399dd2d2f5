// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// Agents with the same settings have the same hash, on each node and in each order.
func TestConfigurationHash(t *testing.T) {
	hashes := make(map[string]string)
	for _, row := range []struct{ reason, args string }{
		{"the defaults", "--network a --source file:a"},
		{"the defaults on another node", "--source file:a --network a --interval 10m --node n --listen=:1 --metrics-listen=:2 --require-pod a/b"},
		{"another network", "--network b --source file:a"},
		{"another source", "--network a --source cri"},
		{"a dry run", "--network a --source file:a --dry-run"},
	} {
		c, _, err := (&app{}).root().Find([]string{"agent"})
		must(t, errors.Join(err, c.ParseFlags(strings.Fields(row.args))))
		hash, settings := configurationHash(c.Flags()), strings.TrimSuffix(row.reason, " on another node")
		for other, hashed := range hashes {
			if (other == settings) != (hashed == hash) {
				t.Errorf("%s has the hash %s, and %s has %s", row.reason, hash, other, hashed)
			}
		}
		hashes[settings] = hash
	}
}

// The library's options follow from the agent's flags.
func TestAgentFlags(t *testing.T) {
	t.Setenv("NODE_NAME", "other")
	a := &app{}
	c, _, err := a.root().Find([]string{"agent"})
	must(t, errors.Join(err, c.ParseFlags(strings.Fields("--min-age 6m --runtime-request-timeout 1m --starting-for 1h --interval 1m "+
		"--startup-timeout 10s --dry-run --memory /m"))))
	env, err := a.env()
	got, want := a.options(), gc.Options{MinAge: 6 * time.Minute, RuntimeRequestTimeout: time.Minute, StartingFor: time.Hour,
		Interval: time.Minute, StartupTimeout: 10 * time.Second, DryRun: true, Memory: "/m"}
	want.Logger = got.Logger
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(want.Logger)); diff != "" || env.Name != "other" || env.LongestADD != time.Hour {
		t.Errorf("%v, node %q, ADDs of %v, options (-want +got):\n%s", err, env.Name, env.LongestADD, diff)
	}
}

// Wrong usage and impossible settings end the agent before it does anything.
func TestAgentStatus(t *testing.T) {
	dir := t.TempDir()
	for _, row := range []struct {
		reason, args string
		status       int
		says         string
	}{
		{"no network: R14 wants them named", "--source file:a", statusUsage, "a --network is missing"},
		{"a daemon has no standard input", "--network a --source file:-", statusUsage, "no standard input"},
		{"a network twice", "--source file:a --network a --network a", statusUsage, "named twice"},
		{"all networks, and nobody who would see another runtime's containers", "--source file:a --network *", statusUsage,
			"needs --source netns"},
		{"less than what a start may take", "--network a --source file:a --starting-for -5m", statusUsage, "--starting-for is -5m"},
		{"... with the sources of a node", "--network a --source kubelet --starting-for -5m", statusUsage, "--starting-for is -5m"},
		{"an interval like a spin", "--network a --source file:a --interval 1ms", statusUsage, "--interval is 1ms"},
		{"no time to start", "--network a --source file:a --startup-timeout -1s", statusUsage, "--startup-timeout is -1s"},
		{"no port", "--network a --source file:a --listen localhost", statusError, "--listen says where"},
	} {
		var out bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // ends it at once should it run
		args := append([]string{"agent", "--data-dir", dir}, strings.Fields(row.args)...)
		status := (&app{stdin: strings.NewReader("[]"), stdout: &out, stderr: &out}).run(ctx, args)
		if status != row.status || !strings.Contains(out.String(), row.says) {
			t.Errorf("%s: status %d, want %d, without %q in:\n%s", row.reason, status, row.status, row.says, out.String())
		}
	}
}
