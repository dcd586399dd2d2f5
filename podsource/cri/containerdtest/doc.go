// SPDX-License-Identifier: Apache-2.0

// Package containerdtest runs the collector against a real containerd.
//
//	cd podsource/cri/containerdtest
//	GOWORK=off go test -race -timeout 30m
//
// builds containerd, its shim, the CNI plugins and the operator's command, at the
// versions of this module's go.mod, and starts them in network, mount and process
// namespaces of their own. Pods are run through the CRI, with bridge and
// host-local, in dual stack; leaks and near-leaks are made of them; the command
// hostlocal-gc does a pass with the runtime as its source; and then reservations
// are compared with sandboxes. The cases that need nothing newer run against the
// containerd 1.6 of Debian 12, too.
//
// Without Kubernetes containers are run by ctr, nerdctl 1.7 and a small client of
// our own on go-cni, and the command asks only the kernel and libcni's cache. Some
// pods and containers run in gVisor, whose namespaces show no address.
//
// It takes about eight minutes, of which -soak is one and -seconds one and a half,
// and the first time ten more for building containerd, nerdctl, Multus and gVisor's
// runsc. What was built stays in .cache at the top of the repository. With package
// arguments, as in "go test ./...", the progress is shown with -v only. With -short
// the soaks take ten seconds.
//
//	GOWORK=off go test -race -timeout 30m -run TestSeconds -seconds 5m
//
// is the long form of what shows that a minimum age of seconds is safe, with more
// combinations of sources.
//
// # What it needs
//
// Linux with overlayfs, root, namespaces, and the go command with a module proxy.
// On Debian runc (unless it is in PATH) and containerd 1.6 are downloaded with
// apt-get, whose lists must be there, and unpacked below .cache: nothing is
// installed. Elsewhere runc has to be in PATH, and 1.6 is left out. Where
// something is missing the tests are skipped, and say why; with CI=true in the
// environment they fail. Control groups may be of version 1 or 2.
//
// # What it leaves behind
//
// Nothing but .cache. The machine's /run, /var/lib, /etc, /opt and
// /sys/kernel/security are covered by others for the tests alone, and processes,
// mounts and network namespaces end with the first process of the namespaces. A
// guardian outside of them waits for that and then removes the control groups,
// whoever was killed, and checks all of it.
//
// # Reading the source
//
// main_linux_test.go has the processes, from outside to inside; node_linux_test.go
// a node, which is a containerd with its directories; pods_linux_test.go and
// collector_linux_test.go what is done with it; internal/gate the CNI plugin that
// goes wrong on request. bare_linux_test.go has the clients without Kubernetes, and
// internal/gocni ours; gvisor_linux_test.go what pods in gVisor need. The cases are
// in the files case_*_linux_test.go, soak_linux_test.go and seconds_*linux_test.go,
// and leftovers_linux_test.go ends suites half-way. incident_*_linux_test.go have
// issues of others, of which examples/incidents makes a table: it sets
// CONTAINERDTEST_TOOLS, so that only what the one at hand needs is built.
//
// It is a module of its own, and not in go.work, because containerd's hundred
// modules would otherwise raise everybody's versions. nerdctl and gVisor, below
// internal/tools, have one each, with their own versions of the same libraries.
package containerdtest
