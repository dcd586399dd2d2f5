// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// parsed is what command line and environment make of the settings.
func parsed(args string, env map[string]string) (settings, error) {
	var s settings
	f := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	s.register(f)
	if err := f.Parse(strings.Fields(args)); err != nil {
		return s, err
	}
	if err := fromEnvironment(f, lookup(env)); err != nil {
		return s, err
	}
	return s, s.check()
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func defaults(change func(*settings)) settings {
	s := settings{
		dataDir: hostlocal.DefaultDataDir, sources: []string{"file:a"},
		minAge: gc.DefaultMinAge, interval: gc.DefaultInterval, startupTimeout: gc.DefaultStartupTimeout, listen: "127.0.0.1:9776",
	}
	change(&s)
	return s
}

func TestSettings(t *testing.T) {
	for _, row := range []struct {
		reason, args string
		env          map[string]string
		want         settings
	}{
		{"the defaults", "--source file:a", nil, defaults(func(*settings) {})},
		{"an environment alone", "", map[string]string{
			"HOSTLOCAL_GC_DATA_DIR": "/run/x", "HOSTLOCAL_GC_NETWORK": "a b\n c", "HOSTLOCAL_GC_SOURCE": "file:a\tfile:b",
			"HOSTLOCAL_GC_REQUIRE_POD": "ns/me", "HOSTLOCAL_GC_ALLOW_EMPTY": "true", "HOSTLOCAL_GC_MIN_AGE": "6m",
			"HOSTLOCAL_GC_INTERVAL": "1m", "HOSTLOCAL_GC_STARTUP_TIMEOUT": "10s", "HOSTLOCAL_GC_DRY_RUN": "1",
			"HOSTLOCAL_GC_LISTEN": ":80", "HOSTLOCAL_GC_CNI_CONF": "/etc/x", "HOSTLOCAL_GC_NODE": "n", "NODE_NAME": "other",
			"HOSTLOCAL_GC_EVENTS": "true", "HOSTLOCAL_GC_KUBECONFIG": "/k", "HOSTLOCAL_GC_VERBOSE": "2",
		}, settings{
			dataDir: "/run/x", networks: []string{"a", "b", "c"}, sources: []string{"file:a", "file:b"}, require: []string{"ns/me"},
			allowEmpty: true, minAge: 6 * time.Minute, interval: time.Minute, startupTimeout: 10 * time.Second, dryRun: true,
			listen: ":80", cniConf: []string{"/etc/x"}, node: "n", events: true, kubeconfig: "/k", verbose: 2,
		}},
		{
			"the command line wins, for all values of a flag", "--source file:a --network a --min-age 7m --dry-run=false --node me --listen=",
			map[string]string{
				"HOSTLOCAL_GC_SOURCE": "file:b", "HOSTLOCAL_GC_NETWORK": "b", "HOSTLOCAL_GC_MIN_AGE": "6m",
				"HOSTLOCAL_GC_DRY_RUN": "true", "NODE_NAME": "other", "HOSTLOCAL_GC_LISTEN": ":80",
			},
			defaults(func(s *settings) { s.networks, s.minAge, s.node, s.listen = []string{"a"}, 7*time.Minute, "me", "" }),
		},
		{
			"what is empty is not set", "--source file:a", map[string]string{"HOSTLOCAL_GC_MIN_AGE": "", "HOSTLOCAL_GC_LISTEN": "", "NODE_NAME": "n"},
			defaults(func(s *settings) { s.node = "n" }),
		},
		{
			"what Kubernetes makes for a Service called hostlocal-gc", "--source file:a",
			map[string]string{"HOSTLOCAL_GC_SERVICE_HOST": "10.0.0.1", "HOSTLOCAL_GC_PORT": "tcp://10.0.0.1:80"},
			defaults(func(*settings) {}),
		},
	} {
		got, err := parsed(row.args, row.env)
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		if diff := cmp.Diff(row.want, got, cmp.AllowUnexported(settings{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

func TestWanted(t *testing.T) {
	for _, row := range []struct {
		reason, args string
		named        string
		all          bool
	}{
		{"none", "", "", true},
		{"a star", "--network *", "", true},
		{"a star among names", "--network a --network *", "", true},
		{"names, of which one twice", "--network b --network a --network b", "b a", false},
	} {
		s, err := parsed("--source file:a "+row.args, nil)
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		if named, all := s.wanted(); strings.Join(named, " ") != row.named || all != row.all {
			t.Errorf("%s: named %v, all %t", row.reason, named, all)
		}
	}
}

// Wrong usage, and what can't work, ends the agent with a status before it did
// anything.
func TestStatus(t *testing.T) {
	dir := t.TempDir()
	noConfig := filepath.Join(dir, "none")
	for _, row := range []struct {
		reason, args string
		env          map[string]string
		status       int
		says         string
	}{
		{"help", "--help", nil, statusDone, "Usage:"},
		{"no source", "", nil, statusUsage, "a --source is missing"},
		{"no such kind", "--source x:y", nil, statusUsage, `there is no kind "x"`},
		{"a daemon has no standard input", "--source file:-", nil, statusUsage, "no standard input"},
		{"a typing error", "--sauce file:a", nil, statusUsage, "unknown flag"},
		{"an argument", "--source file:a podnet", nil, statusUsage, "takes no arguments"},
		{"a network that is none", "--source file:a --network ../x", nil, statusUsage, "--network: network name"},
		{"no age, which only who serves the ADDs may say", "--source file:a --min-age 0s", nil, statusUsage, "an ADD may be in flight"},
		{"a negative age, which is the library's word for that", "--source file:a --min-age -1ns", nil, statusUsage, "an ADD may be in flight"},
		{"an interval like a spin", "--source file:a --interval 1ms", nil, statusUsage, "--interval"},
		{"no time to start", "--source file:a --startup-timeout 0s", nil, statusUsage, "--startup-timeout"},
		{"no port", "--source file:a --listen localhost", nil, statusUsage, "--listen"},
		{"half a pod", "--source file:a --require-pod agent", nil, statusUsage, "is not NAMESPACE/NAME"},
		{"no data dir", "--source file:a --data-dir=", nil, statusUsage, "--data-dir is empty"},
		{"Events about no node", "--source file:a --events", nil, statusUsage, "--events needs --node"},
		{"a value of the environment", "--source file:a", map[string]string{"HOSTLOCAL_GC_MIN_AGE": "5"}, statusUsage, "HOSTLOCAL_GC_MIN_AGE: "},
		{"Events without a way to the API server", "--source file:a --events --node n --kubeconfig " + noConfig, nil, statusError, "reaching the API server for --events"},
		{"a port that is not ours", "--source file:a --listen 203.0.113.1:1", nil, statusError, "--listen says where"},
	} {
		var out bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // should it run, it ends at once
		args := append([]string{"--data-dir", dir}, strings.Fields(row.args)...)
		status := run(ctx, args, lookup(row.env), &out, &out, make(chan os.Signal))
		if status != row.status || !strings.Contains(out.String(), row.says) {
			t.Errorf("%s: status %d, want %d, without %q in:\n%s", row.reason, status, row.status, row.says, out.String())
		}
	}
}

// The manual has every flag with its variable, every endpoint, and the default
// port. So has --help, for flags and variables.
func TestReadmeIsWhole(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var help bytes.Buffer
	run(t.Context(), []string{"--help"}, lookup(nil), &help, &help, nil)
	var s settings
	f := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	s.register(f)
	var want []string
	f.VisitAll(func(f *pflag.Flag) {
		want = append(want, "`--"+f.Name, "`"+variable(f.Name)+"`")
		for _, text := range []string{"--" + f.Name, "[$" + variable(f.Name) + "]"} {
			if !strings.Contains(help.String(), text) {
				t.Errorf("--help lacks %q", text)
			}
		}
	})
	for _, text := range append(want, defaultListen, nodeName, "`/metrics`", "`/healthz`", "`/readyz`", "`"+debugPath+"`", eventReleased, eventRefused) {
		if !strings.Contains(string(readme), text) {
			t.Errorf("README.md lacks %q", text)
		}
	}
}
