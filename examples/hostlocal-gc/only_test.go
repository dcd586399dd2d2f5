// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

// --ip releases a leaked address. For any other it is an error that says why.
func TestReleaseByAddress(t *testing.T) {
	for _, row := range []struct {
		reason string
		flags  []string
		left   int
		status int
		stderr string
	}{
		{"leaked", []string{"--ip", "10.1.0.3"}, 2, 0, ""},
		{"an IPv4 address written as IPv6", []string{"--ip", "::ffff:10.1.0.3"}, 2, 0, ""},
		{"two of them", []string{"--ip", "10.1.0.3", "--ip", "10.1.0.4"}, 1, 0, ""},
		{"in use", []string{"--ip", "10.1.0.2"}, 3, 1, "10.1.0.2 was not released: it is in-use in network podnet"},
		{"one leaked and one not reserved", []string{"--ip", "10.1.0.3", "--ip", "10.1.0.99"}, 2, 1, "10.1.0.99 was not released: it is not reserved"},
		{"no address", []string{"--ip", "web"}, 3, 2, `"web" is no address`},
		{"one address twice", []string{"--ip", "10.1.0.2", "--ip", "::ffff:10.1.0.2"}, 3, 1, "10.1.0.2 was not released"},
		{"an address with a zone", []string{"--ip", "fe80::1%eth0"}, 3, 2, "no zones"},
		{"a dry run shows all", []string{"--ip", "10.1.0.3", "--dry-run"}, 3, 2, "--dry-run"},
	} {
		n := newNode(t)
		podnet := n.network("podnet", "10.1.0.0/24")
		for _, name := range []string{"web", "gone", "gone too"} {
			podnet.add(sandbox(name), time.Hour)
		}
		n.pods("pods.json", pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}})
		got := run(t, n.dir, nil, append([]string{"release", "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json"}, row.flags...)...)
		left := 0
		for _, ip := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4"} {
			if podnet.there(ip) {
				left++
			}
		}
		if row.status == 0 && row.stderr == "" && got.stderr != "" {
			t.Errorf("%s: stderr %q", row.reason, got.stderr)
		}
		if strings.Count(got.stderr, "was not released") > 1 {
			t.Errorf("%s: printed twice: %s", row.reason, got.stderr)
		}
		if left != row.left || got.status != row.status || !strings.Contains(got.stderr, row.stderr) {
			t.Errorf("%s: %d left, exit status %d, stderr %q", row.reason, left, got.status, got.stderr)
		}
	}
}

// An address that is reserved in a network that --network does not name is not reported as free.
func TestAddressElsewhere(t *testing.T) {
	n := newNode(t)
	n.network("podnet", "10.1.0.0/24").add(sandbox("web"), time.Hour)
	other := n.network("other", "10.2.0.0/24")
	other.add(sandbox("gone"), time.Hour)
	n.pods("pods.json", pod{Namespace: "shop", Name: "web", ContainerIDs: []string{sandbox("web")}})
	const elsewhere = "it is reserved in other, which --network does not name"
	for _, row := range []struct {
		reason string
		args   []string
		status int
		says   string
	}{
		{"to be shown", []string{"show", "10.2.0.2"}, 0, "10.2.0.2: " + elsewhere},
		{"to be shown, and nobody has it", []string{"show", "10.2.0.9"}, 0, "10.2.0.9: it is not reserved in networks"},
		{"to be released", []string{"release", "--ip", "10.2.0.2"}, 1, "10.2.0.2 was not released: " + elsewhere},
	} {
		got := run(t, n.dir, nil, append(row.args, "--data-dir", "networks", "--network", "podnet", "--source", "file:pods.json")...)
		if got.status != row.status || !strings.Contains(got.stdout+got.stderr, row.says) || !other.there("10.2.0.2") {
			t.Errorf("%s: exit status %d, and not %q:\n%s%s", row.reason, got.status, row.says, got.stdout, got.stderr)
		}
	}
}
