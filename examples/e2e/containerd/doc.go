// SPDX-License-Identifier: Apache-2.0

// Package containerdtest runs the collector against a real containerd.
//
//	cd podsource/cri/containerdtest
//	GOWORK=off go test -race -timeout 30m
//
// builds containerd, its shim, the CNI plugins and the command, at the versions of this
// module's go.mod, and starts them in their own network, mount and PID namespaces. The
// cases run pods through the CRI with bridge and host-local, in dual stack, and make some
// of their addresses leak. Then the command hostlocal-gc runs a pass with the runtime as
// its source, and the reservations are compared with the sandboxes. Cases that need
// nothing newer also run against the containerd 1.6 of Debian 12.
//
// The cases without Kubernetes run containers with ctr, nerdctl 1.7 and a small client with
// go-cni, and the sources of the command are the kernel and libcni's cache. Some pods and
// containers run in gVisor, whose network namespaces show no address.
//
// The suite takes about eight minutes, including one for -soak and one and a half for
// -seconds. The first run takes ten more to build containerd, nerdctl, Multus and gVisor's
// runsc, which stay in .cache at the root of the repository. With package arguments, as in
// "go test ./...", the progress is shown with -v only. With -short the soaks take ten
// seconds.
//
//	GOWORK=off go test -race -timeout 30m -run TestSeconds -seconds 5m
//
// is the long form of the test of a minimum age of seconds, with more combinations of
// sources.
//
// # Requirements
//
// Linux with overlayfs, root, namespaces, and the go command with a module proxy.
// On Debian the tests download runc (unless it is in PATH) and containerd 1.6 with apt-get,
// whose lists must exist, and unpack them below .cache. Nothing is installed. On other
// systems runc must be in PATH, and the tests with 1.6 are skipped. If a requirement is
// missing, the tests are skipped with the reason; with CI=true in the environment they
// fail. Control groups may be of version 1 or 2.
//
// # Leftovers
//
// Only .cache is left. The tests have their own mounts over parts of the machine's /run,
// /var/lib, /etc, /opt and /sys/kernel/security. Processes, mounts and network namespaces
// end with the first process of the namespaces. A supervisor outside the namespaces waits
// for this, also if other processes of the suite were killed. It then removes the control
// groups, and checks that nothing is left.
//
// # Reading the source
//
// main_linux_test.go has the processes of the suite. node_linux_test.go has a node, which is
// a containerd with its directories, and pods_linux_test.go and collector_linux_test.go
// have its pods and passes. internal/gate is a CNI plugin that fails on request.
// bare_linux_test.go has the clients without Kubernetes, internal/gocni is one of them, and
// gvisor_linux_test.go is for pods in gVisor. The cases are in case_*_linux_test.go,
// soak_linux_test.go and seconds_*linux_test.go, and leftovers_linux_test.go kills suites
// while they run. incident_*_linux_test.go reproduce issues of other projects, and
// examples/incidents makes a table of them: it sets CONTAINERDTEST_TOOLS, so that only the
// tools of one incident are built.
//
// It is a module of its own outside go.work, since containerd's hundred modules would
// otherwise raise the versions of all modules of the workspace. nerdctl and gVisor, below
// internal/tools, have their own modules with other versions of the same libraries.
package containerd
