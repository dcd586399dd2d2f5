// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
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
		dataDir: hostlocal.DefaultDataDir, networks: []string{"a"}, sources: []string{"file:a"}, requestTimeout: gc.DefaultRuntimeRequestTimeout,
		interval: gc.DefaultInterval, startupTimeout: gc.DefaultStartupTimeout, listen: "127.0.0.1:9776",
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
		{"the defaults", "--network a --source file:a", nil, defaults(func(*settings) {})},
		{"an environment alone", "", map[string]string{
			"HOSTLOCAL_GC_DATA_DIR": "/run/x", "HOSTLOCAL_GC_NETWORK": "a b\n c", "HOSTLOCAL_GC_SOURCE": "file:a\tfile:b",
			"HOSTLOCAL_GC_REQUIRE_POD": "ns/me", "HOSTLOCAL_GC_ALLOW_EMPTY": "true", "HOSTLOCAL_GC_MIN_AGE": "6m",
			"HOSTLOCAL_GC_RUNTIME_REQUEST_TIMEOUT": "1m", "HOSTLOCAL_GC_STARTING_FOR": "1h",
			"HOSTLOCAL_GC_INTERVAL": "1m", "HOSTLOCAL_GC_STARTUP_TIMEOUT": "10s", "HOSTLOCAL_GC_DRY_RUN": "1",
			"HOSTLOCAL_GC_LISTEN": ":80", "HOSTLOCAL_GC_CNI_CONF": "/etc/x", "HOSTLOCAL_GC_NODE": "n", "NODE_NAME": "other",
			"HOSTLOCAL_GC_EVENTS": "true", "HOSTLOCAL_GC_KUBECONFIG": "/k", "HOSTLOCAL_GC_VERBOSE": "2",
		}, settings{
			dataDir: "/run/x", networks: []string{"a", "b", "c"}, sources: []string{"file:a", "file:b"}, require: []string{"ns/me"},
			allowEmpty: true, requestTimeout: time.Minute, minAge: 6 * time.Minute, startingFor: time.Hour, interval: time.Minute, startupTimeout: 10 * time.Second, dryRun: true,
			listen: ":80", cniConf: []string{"/etc/x"}, node: "n", events: true, kubeconfig: "/k", verbose: 2,
		}},
		{
			"the command line wins, for all values of a flag", "--source file:a --network c --min-age 7m --dry-run=false --node me --listen=",
			map[string]string{
				"HOSTLOCAL_GC_SOURCE": "file:b", "HOSTLOCAL_GC_NETWORK": "b", "HOSTLOCAL_GC_MIN_AGE": "6m",
				"HOSTLOCAL_GC_DRY_RUN": "true", "NODE_NAME": "other", "HOSTLOCAL_GC_LISTEN": ":80",
			},
			defaults(func(s *settings) { s.networks, s.minAge, s.node, s.listen = []string{"c"}, 7*time.Minute, "me", "" }),
		},
		{
			"what is empty is not set", "--network a --source file:a", map[string]string{"HOSTLOCAL_GC_MIN_AGE": "", "HOSTLOCAL_GC_LISTEN": "", "NODE_NAME": "n"},
			defaults(func(s *settings) { s.node = "n" }),
		},
		{
			"what Kubernetes makes for a Service called hostlocal-gc", "--network a --source file:a",
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

// The minimum age that the page shows is the one that counts.
func TestMinimumAge(t *testing.T) {
	for _, row := range []struct {
		reason, args string
		want         time.Duration
	}{
		{"as the library has it", "", gc.DefaultMinAge},
		{"it follows from the other", "--runtime-request-timeout 5m", 13 * time.Minute},
		{"it is given", "--runtime-request-timeout 5m --min-age 20m", 20 * time.Minute},
	} {
		s, err := parsed("--network a --source file:a "+row.args, nil)
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		if got := s.minimumAge(); got != row.want {
			t.Errorf("%s: %v, want %v", row.reason, got, row.want)
		}
	}
}

// Each flag comes to the library.
func TestOptions(t *testing.T) {
	s, err := parsed("--network a --source file:a --runtime-request-timeout 1m --min-age 6m --starting-for 1h --interval 2m --startup-timeout 3s --dry-run", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := gc.Options{
		RuntimeRequestTimeout: time.Minute, MinAge: 6 * time.Minute, StartingFor: time.Hour, Interval: 2 * time.Minute,
		StartupTimeout: 3 * time.Second, DryRun: true,
	}
	if got := s.options(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// What a source without any pod is worth, with the flags that say so.
func TestPodSource(t *testing.T) {
	list := put(t, filepath.Join(t.TempDir(), "pods.json"), "[]")
	for _, row := range []struct {
		reason, args  string
		authoritative bool
		err           error
	}{
		{"an empty list is no word on its own (R9)", "", false, nil},
		{"the user gives theirs", "--allow-empty", true, nil},
		{"a pod that has to be there is not", "--require-pod ns/agent", false, podsource.ErrIncomplete},
		{"nor does the user's word for an empty node make up for it", "--allow-empty --require-pod ns/agent", false, podsource.ErrIncomplete},
	} {
		s, err := parsed("--network a --source file:"+list+" "+row.args, nil)
		if err != nil {
			t.Fatal(err)
		}
		pods, err := s.podSource(logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		answer, err := pods.Pods(t.Context())
		if !errors.Is(err, row.err) {
			t.Errorf("%s: error %v, want %v", row.reason, err, row.err)
		}
		for _, a := range answer.Members() {
			if err == nil && a.Authoritative != row.authoritative {
				t.Errorf("%s: authoritative %t", row.reason, a.Authoritative)
			}
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
		{"no network: R14 wants them named", "--source file:a", nil, statusUsage, "a --network is missing"},
		{"no source", "--network a", nil, statusUsage, "a --source is missing"},
		{"no such kind", "--network a --source x:y", nil, statusUsage, `there is no kind "x"`},
		{"a daemon has no standard input", "--network a --source file:-", nil, statusUsage, "no standard input"},
		{"a typing error", "--network a --sauce file:a", nil, statusUsage, "unknown flag"},
		{"an argument", "--network a --source file:a podnet", nil, statusUsage, "takes no arguments"},
		{"a network that is none", "--source file:a --network ../x", nil, statusUsage, `"../x" is not the name of a CNI network`},
		{"a network twice", "--source file:a --network a --network a", nil, statusUsage, "named twice"},
		{"no pattern: a network that appears later is not meant", "--source file:a --network *", nil, statusUsage, `"*" is not the name of a CNI network`},
		{"an age that is negative", "--network a --source file:a --min-age -1ns", nil, statusUsage, "MinAge is -1ns"},
		{"an age in nanoseconds", "--network a --source file:a --min-age 300ns", nil, statusUsage, "MinAge is 300ns"},
		{"less than what a start may take", "--network a --source file:a --starting-for 5m", nil, statusUsage, "StartingFor is 5m"},
		{"a T like no kubelet's", "--network a --source file:a --runtime-request-timeout 2h", nil, statusUsage, "RuntimeRequestTimeout is 2h"},
		{"an interval like a spin", "--network a --source file:a --interval 1ms", nil, statusUsage, "Interval is 1ms"},
		{"no time to start", "--network a --source file:a --startup-timeout -1s", nil, statusUsage, "StartupTimeout is -1s"},
		{"no port", "--network a --source file:a --listen localhost", nil, statusUsage, "--listen"},
		{"half a pod", "--network a --source file:a --require-pod agent", nil, statusUsage, "is not NAMESPACE/NAME"},
		{"no data directory", "--network a --source file:a --data-dir=", nil, statusUsage, "--data-dir is empty"},
		{"Events about no node", "--network a --source file:a --events", nil, statusUsage, "--events needs --node"},
		{"a value of the environment", "--network a --source file:a", map[string]string{"HOSTLOCAL_GC_MIN_AGE": "5"}, statusUsage, "HOSTLOCAL_GC_MIN_AGE: "},
		{"Events without a way to the API server", "--network a --source file:a --events --node n --kubeconfig " + noConfig, nil, statusError, "reaching the API server for --events"},
		{"a port that is not ours", "--network a --source file:a --listen 203.0.113.1:1", nil, statusError, "--listen says where"},
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
