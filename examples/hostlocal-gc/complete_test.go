// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestCompleteAddresses(t *testing.T) {
	n := newNode(t)
	podnet := n.network("podnet", "10.244.1.0/24")
	podnet.add(sandbox("web-1"), day)
	podnet.write(podnet.add(sandbox("web-2"), day)[0], garbage, day)
	n.network("storage", "192.168.100.0/24").add(sandbox("web-1"), day)
	const owned, malformed, second = "10.244.1.2\tpodnet\n", "10.244.1.3\tpodnet\n", "192.168.100.2\tstorage\n"
	for _, row := range []struct{ args, want, reason string }{
		{"show --data-dir networks ", owned + malformed + second, "all that are reserved"},
		{"show --data-dir networks 10.", owned + malformed, "which begin so"},
		{"show --data-dir networks 10.244.1.2 ", "", "it takes one address"},
		{"show --data-dir nowhere ", "", "there is no such directory"},
		{"release --data-dir networks --ip ", owned + malformed + second, "the flag's value"},
		{"release --data-dir networks --network storage --ip ", second, "the network is named"},
		{"release --data-dir networks --network * --ip 10.", owned + malformed, "all networks"},
		{"release --data-dir networks --network ", "podnet\nstorage\n", "networks"},
	} {
		got := run(t, n.dir, nil, append([]string{"__complete"}, strings.Split(row.args, " ")...)...)
		if want := row.want + ":4\n"; got.status != statusDone || got.stdout != want {
			t.Errorf("%s (%s): exit status %d, got %q, want %q", row.args, row.reason, got.status, got.stdout, want)
		}
	}
}
