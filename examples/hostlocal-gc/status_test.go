// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Wrong usage and bad input release nothing, and the error says what to do.
func TestRefusals(t *testing.T) {
	const release, plan = "release --network podnet ", "plan --data-dir networks --source file:pods.json "
	n := mixedNode(t)
	for _, row := range []struct {
		reason, args, stdin string
		status              int
		stderr              string
	}{
		{reason: "no command", args: "", status: statusUsage, stderr: "a command is missing"},
		{reason: "an unknown command", args: "plam", status: statusUsage, stderr: "Did you mean this?\n  plan"},
		{reason: "an unknown flag", args: "plan --bogus", status: statusUsage, stderr: "unknown flag: --bogus"},
		{reason: "an unknown output", args: "plan -o yaml", status: statusUsage, stderr: `there is no output format "yaml": give table or json`},
		{reason: "an argument", args: "plan podnet", status: statusUsage, stderr: "name a network with --network"},
		{reason: "no address", args: "release --network podnet --ip web", status: statusUsage, stderr: `"web" is no address`},
		{reason: "an address with a zone", args: release + "--ip fe80::1%eth0", status: statusUsage, stderr: "no zones"},
		{reason: "an age below the least", args: plan + "--min-age 999ms", status: statusUsage, stderr: "--min-age is 999ms; it must be from 1s"},
		{reason: "a timeout of the runtime that none has", args: plan + "--runtime-request-timeout 2h", status: statusUsage,
			stderr: "--runtime-request-timeout is 2h"},
		{reason: "a prefix of foreign owners that is empty", args: plan + "--allow-foreign=", status: statusUsage,
			stderr: "--allow-foreign has an empty prefix"},
		{reason: "a negative timeout", args: plan + "--timeout -1s", status: statusUsage, stderr: "--timeout is -1s"},
		{reason: "a name that leads out of the data dir", args: plan + "--network ../etc", status: statusUsage,
			stderr: `"../etc" is not the name of a CNI network`},
		{reason: "an unknown source", args: "plan --source docker", status: statusUsage,
			stderr: `there is no kind "docker"; the kinds are file:PATH`},
		{reason: "a required pod without its namespace", args: "plan --source file:pods.json --require-pod agent", status: statusUsage,
			stderr: `--require-pod "agent" is not NAMESPACE/NAME`},
		{reason: "a release of all networks", args: "release --data-dir networks --source file:pods.json", status: statusUsage,
			stderr: "a --network is missing: release works only on networks that are named (networks: it holds podnet, storage)"},

		{reason: "all networks, and nobody who would see another runtime's containers", args: "release --network * --source file:pods.json",
			status: statusUsage, stderr: "needs --source netns"},
		{reason: "malformed files of all networks", args: "remove-malformed --network *", status: statusUsage, stderr: "a --network is missing"},
		{reason: "a range of all networks", args: "check --network * --range 10.244.1.0/24", status: statusUsage,
			stderr: "name that with --network"},
		{reason: "all networks, and one of them", args: plan + "--network * --network storage", status: statusUsage,
			stderr: `"*" must be the only network`},

		{reason: "no such directory", args: "plan --data-dir none", status: statusError, stderr: "data dir none: there is no such directory"},
		{reason: "a data dir that is a network's directory", args: "plan --data-dir networks/podnet", status: statusError,
			stderr: "is itself a network's directory"},
		{reason: "two sources, and the second fails", args: release + "--data-dir networks --source file:pods.json --source file:cut.json",
			status: statusError, stderr: "pod source file: file:cut.json: "},
		{reason: "a source that says there is nothing", args: release + "--data-dir networks --source file:-", stdin: "[]", status: statusError,
			stderr: "a pod source reports no pod at all"},
		{reason: "a cluster that nothing names", args: "fleet --kubeconfig /dev/null", status: statusError,
			stderr: "reading the kubeconfig: there is none: --kubeconfig"},
		{reason: "a range of no network", args: "map --range 10.0.0.0/24", status: statusUsage, stderr: "name that with --network"},
	} {
		got := run(t, n.dir, strings.NewReader(row.stdin), strings.Fields(row.args)...)
		if got.status != row.status || !strings.Contains(got.stderr, row.stderr) {
			t.Errorf("%s: exit status %d, want %d, and %q does not say %q", row.reason, got.status, row.status, got.stderr, row.stderr)
		}
		if row.status == statusUsage && got.stdout != "" {
			t.Errorf("%s: after wrong usage stdout has %q", row.reason, got.stdout)
		}
		if !n.there("podnet/10.244.1.3") {
			t.Fatalf("%s: it released something", row.reason)
		}
	}
}

// Each command has a help text that fits a terminal of 80 columns. What removes a protection is at its end.
func TestHelp(t *testing.T) {
	for _, c := range append(new(app).root().Commands(), &cobra.Command{Use: "help"}) {
		got := run(t, ".", nil, c.Name(), "--help")
		if got.status != statusDone || !strings.Contains(got.stdout, c.Long) {
			t.Errorf("%s: exit status %d: %s", c.Name(), got.status, got.stdout)
		}
		flags := strings.Split(got.stdout, "\n      --")
		if last := flags[len(flags)-1]; strings.Contains(got.stdout, "--allow-empty") && !strings.HasPrefix(last, "allow-") {
			t.Errorf("%s: what removes a protection is not last, but --%s", c.Name(), last)
		}
		for line := range strings.Lines(got.stdout) {
			if len(line) > 81 {
				t.Errorf("%s: %d columns: %s", c.Name(), len(line)-1, line)
			}
		}
	}
}
