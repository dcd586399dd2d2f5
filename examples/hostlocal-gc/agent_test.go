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

func defaults(change func(*flags)) flags {
	a := &app{}
	a.root()
	a.flags.networks, a.flags.sources = []string{"a"}, []string{"file:a"}
	change(&a.flags)
	return a.flags
}

// The agent's flags, and the library's options that follow from them. Agents with the same settings have the same hash, on
// each node and in each order.
func TestAgentFlags(t *testing.T) {
	t.Setenv("NODE_NAME", "other")
	hashes := make(map[string]string)
	const all = "--data-dir /run/x --network a --network b --source file:a --source file:b --require-pod ns/me --allow-empty " +
		"--min-age 6m --runtime-request-timeout 1m --starting-for 1h --interval 1m --startup-timeout 10s --dry-run --listen :80 " +
		"--metrics-listen :81 --log-format json --cni-conf /etc/x --node n --kubeconfig /k -v 2"
	for _, row := range []struct {
		reason, args string
		want         flags
	}{
		{"the defaults", "--network a --source file:a", defaults(func(f *flags) { f.node = "other" })},
		{"the defaults on another node", "--source file:a --network a --interval 10m --node n --listen=:1 --metrics-listen=:2 --require-pod a/b",
			defaults(func(f *flags) { f.node, f.listen, f.metricsListen, f.require = "n", ":1", ":2", []string{"a/b"} })},
		{"another network", "--network b --source file:a", defaults(func(f *flags) { f.node, f.networks = "other", []string{"b"} })},
		{"another source", "--network a --source cri", defaults(func(f *flags) { f.node, f.sources = "other", []string{"cri"} })},
		{"a dry run", "--network a --source file:a --dry-run", defaults(func(f *flags) { f.node, f.dryRun = "other", true })},
		{"all", all, defaults(func(f *flags) {
			f.dataDir, f.networks, f.sources, f.require = "/run/x", []string{"a", "b"}, []string{"file:a", "file:b"}, []string{"ns/me"}
			f.allowEmpty, f.requestTimeout, f.minAge, f.startingFor = true, time.Minute, 6*time.Minute, time.Hour
			f.interval, f.startupTimeout, f.dryRun = time.Minute, 10*time.Second, true
			f.listen, f.metricsListen, f.cniConf, f.node, f.kubeconfig = ":80", ":81", []string{"/etc/x"}, "n", "/k"
			f.verbose, f.logFormat = 2, "json"
		})},
	} {
		a := &app{}
		c, _, err := a.root().Find([]string{"agent"})
		if err := errors.Join(err, c.ParseFlags(strings.Fields(row.args))); err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		hash, settings := configurationHash(c.Flags()), strings.TrimSuffix(row.reason, " on another node")
		for other, hashed := range hashes {
			if (other == settings) != (hashed == hash) {
				t.Errorf("%s has the hash %s, and %s has %s", row.reason, hash, other, hashed)
			}
		}
		hashes[settings] = hash
		if diff := cmp.Diff(row.want, a.flags, cmp.AllowUnexported(flags{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		opts, f := a.passes(), row.want
		want := gc.Options{
			MinAge: f.minAge, RuntimeRequestTimeout: f.requestTimeout, StartingFor: f.startingFor,
			Interval: f.interval, StartupTimeout: f.startupTimeout, DryRun: f.dryRun, Logger: opts.Logger,
		}
		if diff := cmp.Diff(want, opts, cmpopts.IgnoreUnexported(want.Logger)); diff != "" {
			t.Errorf("%s: the library's options (-want +got):\n%s", row.reason, diff)
		}
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
		{"help", "--help", statusDone, "Usage:"},
		{"no network: R14 wants them named", "--source file:a", statusUsage, "a --network is missing"},
		{"a daemon has no standard input", "--network a --source file:-", statusUsage, "no standard input"},
		{"a network twice", "--source file:a --network a --network a", statusUsage, "named twice"},
		{"all networks, and nobody who would see another runtime's containers", "--source file:a --network *", statusUsage, "needs --source netns"},
		{"less than what a start may take", "--network a --source file:a --starting-for 5m", statusUsage, "--starting-for is 5m"},
		{"an interval like a spin", "--network a --source file:a --interval 1ms", statusUsage, "--interval is 1ms"},
		{"no time to start", "--network a --source file:a --startup-timeout -1s", statusUsage, "--startup-timeout is -1s"},
		{"no port", "--network a --source file:a --listen localhost", statusError, "--listen says where"},
		{"a port that is not ours", "--network a --source file:a --listen 203.0.113.1:1", statusError, "--listen says where"},
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
