// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// parsed returns the app of a command line and environment, as the command's body gets it.
func parsed(args string, env map[string]string) (*app, error) {
	a := &app{stdout: io.Discard, stderr: io.Discard, lookup: lookup(env)}
	root := a.root()
	c, _, err := root.Find([]string{"agent"})
	if err != nil {
		return nil, err
	}
	c.RunE = func(*cobra.Command, []string) error { return nil }
	root.SetArgs(append([]string{"agent"}, strings.Fields(args)...))
	return a, root.Execute()
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func defaults(change func(*flags)) flags {
	a := &app{}
	a.root()
	a.flags.networks, a.flags.sources = []string{"a"}, []string{"file:a"}
	change(&a.flags)
	return a.flags
}

// A misspelt variable prevents the agent's start, and the variables of a Service do not.
func TestMisspeltVariable(t *testing.T) {
	for _, row := range []struct {
		reason, variable string
		misspelt         bool
	}{
		{"a dry run that would be none", "HOSTLOCAL_GC_DRYRUN=true", true},
		{"a flag of the agent", "HOSTLOCAL_GC_DRY_RUN=true", false},
		{"a flag of another command, which has the agent's environment", "HOSTLOCAL_GC_CNI_DIR=/x", false},
		{"another program's", "HOSTLOCAL_DRYRUN=true", false},
		{"empty, which counts as not set", "HOSTLOCAL_GC_DRYRUN=", false},
		{"a Service's address", "HOSTLOCAL_GC_SERVICE_HOST=10.96.0.7", false},
		{"a Service's named port", "HOSTLOCAL_GC_SERVICE_PORT_METRICS=9777", false},
		{"a Service's link", "HOSTLOCAL_GC_PORT=tcp://10.96.0.7:9777", false},
		{"another Service's link", "HOSTLOCAL_GC_METRICS_PORT_9777_TCP_ADDR=10.96.0.7", false},
		{"a port is in the middle of a name", "HOSTLOCAL_GC_PORT_TO_LISTEN=9777", true},
	} {
		// The agent ends anyway, since no network is given.
		var stderr bytes.Buffer
		a := &app{stdout: io.Discard, stderr: &stderr, lookup: lookup(nil), environ: []string{"PATH=/bin", row.variable}}
		if status := a.run(t.Context(), []string{"agent"}); status != statusUsage ||
			strings.Contains(stderr.String(), "unknown variable HOSTLOCAL_GC_") != row.misspelt {
			t.Errorf("%s (%s): exit status %d, %q", row.variable, row.reason, status, &stderr)
		}
	}
}

func TestAgentFlags(t *testing.T) {
	for _, row := range []struct {
		reason, args string
		env          map[string]string
		want         flags
	}{
		{"the defaults", "--network a --source file:a", nil, defaults(func(*flags) {})},
		{"an environment alone", "", map[string]string{
			"HOSTLOCAL_GC_DATA_DIR": "/run/x", "HOSTLOCAL_GC_NETWORK": "a b\n c", "HOSTLOCAL_GC_SOURCE": "file:a\tfile:b",
			"HOSTLOCAL_GC_REQUIRE_POD": "ns/me", "HOSTLOCAL_GC_ALLOW_EMPTY": "true", "HOSTLOCAL_GC_MIN_AGE": "6m",
			"HOSTLOCAL_GC_RUNTIME_REQUEST_TIMEOUT": "1m", "HOSTLOCAL_GC_STARTING_FOR": "1h",
			"HOSTLOCAL_GC_INTERVAL": "1m", "HOSTLOCAL_GC_STARTUP_TIMEOUT": "10s", "HOSTLOCAL_GC_DRY_RUN": "1",
			"HOSTLOCAL_GC_LISTEN": ":80", "HOSTLOCAL_GC_METRICS_LISTEN": ":81", "HOSTLOCAL_GC_LOG_FORMAT": "json", "HOSTLOCAL_GC_CNI_CONF": "/etc/x", "HOSTLOCAL_GC_NODE": "n", "NODE_NAME": "other",
			"HOSTLOCAL_GC_KUBECONFIG": "/k", "HOSTLOCAL_GC_VERBOSE": "2",
		}, defaults(func(f *flags) {
			f.dataDir, f.networks, f.sources, f.require = "/run/x", []string{"a", "b", "c"}, []string{"file:a", "file:b"}, []string{"ns/me"}
			f.allowEmpty, f.requestTimeout, f.minAge, f.startingFor = true, time.Minute, minAge(6*time.Minute), time.Hour
			f.interval, f.startupTimeout, f.dryRun = time.Minute, 10*time.Second, true
			f.listen, f.metricsListen, f.cniConf, f.node, f.kubeconfig = ":80", ":81", []string{"/etc/x"}, "n", "/k"
			f.verbose, f.logFormat = 2, "json"
		})},
		{
			"the command line wins, for all values of a flag", "--source file:a --network c --min-age 7m --dry-run=false --node me --listen=",
			map[string]string{
				"HOSTLOCAL_GC_SOURCE": "file:b", "HOSTLOCAL_GC_NETWORK": "b", "HOSTLOCAL_GC_MIN_AGE": "6m",
				"HOSTLOCAL_GC_DRY_RUN": "true", "NODE_NAME": "other", "HOSTLOCAL_GC_LISTEN": ":80",
			},
			defaults(func(s *flags) {
				s.networks, s.minAge, s.node, s.listen = []string{"c"}, minAge(7*time.Minute), "me", ""
			}),
		},
		{
			"what is empty is not set", "--network a --source file:a", map[string]string{"HOSTLOCAL_GC_MIN_AGE": "", "HOSTLOCAL_GC_LISTEN": "", "NODE_NAME": "n"},
			defaults(func(s *flags) { s.node = "n" }),
		},
		{
			"what Kubernetes makes for a Service called hostlocal-gc", "--network a --source file:a",
			map[string]string{"HOSTLOCAL_GC_SERVICE_HOST": "10.0.0.1", "HOSTLOCAL_GC_PORT": "tcp://10.0.0.1:80"},
			defaults(func(*flags) {}),
		},
	} {
		got, err := parsed(row.args, row.env)
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		if diff := cmp.Diff(row.want, got.flags, cmp.AllowUnexported(flags{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		opts, f := got.passes(), row.want
		want := gc.Options{
			MinAge: time.Duration(f.minAge), RuntimeRequestTimeout: f.requestTimeout, StartingFor: f.startingFor,
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
		env          map[string]string
		status       int
		says         string
	}{
		{"help", "--help", nil, statusDone, "Usage:"},
		{"no network: R14 wants them named", "--source file:a", nil, statusUsage, "a --network is missing"},
		{"a daemon has no standard input", "--network a --source file:-", nil, statusUsage, "no standard input"},
		{"a network twice", "--source file:a --network a --network a", nil, statusUsage, "named twice"},
		{"all networks, and nobody who would see another runtime's containers", "--source file:a --network *", nil, statusUsage, "needs --source netns"},
		{"less than what a start may take", "--network a --source file:a --starting-for 5m", nil, statusUsage, "--starting-for is 5m"},
		{"an interval like a spin", "--network a --source file:a --interval 1ms", nil, statusUsage, "--interval is 1ms"},
		{"no time to start", "--network a --source file:a --startup-timeout -1s", nil, statusUsage, "--startup-timeout is -1s"},
		{"no port", "--network a --source file:a --listen localhost", nil, statusUsage, "--listen"},
		{"a value of the environment", "--network a --source file:a", map[string]string{"HOSTLOCAL_GC_MIN_AGE": "5"}, statusUsage, "HOSTLOCAL_GC_MIN_AGE: "},
		{"a port that is not ours", "--network a --source file:a --listen 203.0.113.1:1", nil, statusError, "--listen says where"},
	} {
		var out bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // ends it at once should it run
		args := append([]string{"agent", "--data-dir", dir}, strings.Fields(row.args)...)
		status := (&app{stdin: strings.NewReader("[]"), stdout: &out, stderr: &out, lookup: lookup(row.env)}).run(ctx, args)
		if status != row.status || !strings.Contains(out.String(), row.says) {
			t.Errorf("%s: status %d, want %d, without %q in:\n%s", row.reason, status, row.status, row.says, out.String())
		}
	}
}

// No variable sets --yes, and none sets --allow-foreign, which is true for a short time only: a container of nerdctl keeps its
// address unless a person gives the flag.
func TestForeignIsNoVariable(t *testing.T) {
	a := &app{}
	c := a.repairCommand()
	if err := fromEnvironment(c.Flags(), lookup(map[string]string{"HOSTLOCAL_GC_YES": "true"})); err != nil || a.flags.yes {
		t.Errorf("a variable says yes, error %v", err)
	}
	for _, row := range []struct {
		reason, env string
		flags       []string
		left        bool
	}{
		{"a variable", "HOSTLOCAL_GC_ALLOW_FOREIGN=*", nil, true},
		{"the flag", "", []string{"--allow-foreign", "default-"}, false},
	} {
		n := newNode(t)
		podnet := n.network("podnet", "10.1.0.0/24")
		ips := podnet.add("default-"+sandbox("nerdctl's"), time.Hour)
		n.pods("pods.json", pod{Name: "x", ContainerIDs: []string{sandbox("x")}})
		args := []string{"release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json"}
		cmd := command(t, n.dir, append(args, row.flags...)...)
		cmd.Env = append(cmd.Env, row.env)
		if out, err := cmd.CombinedOutput(); err != nil || podnet.there(ips[0]) != row.left {
			t.Errorf("%s: %v, and it is not %v that the address is kept:\n%s", row.reason, err, row.left, out)
		}
	}
}
