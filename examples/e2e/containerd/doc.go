// SPDX-License-Identifier: Apache-2.0

// Package containerd runs the collector against a real containerd.
//
//	cd examples/e2e
//	GOWORK=off go test -race -timeout 30m -v ./containerd
//
// It builds containerd, its shim, the CNI plugins and the command, and starts them in network, mount, process and IPC
// namespaces of their own. The cases run pods through the CRI with bridge and host-local, in dual stack, and make
// some of their addresses leak. Then the command runs a pass, and the reservations are compared with the sandboxes.
// Cases that need nothing newer also run on the containerd 1.6 of Debian 12. TestIncident_NAME reproduces the issue
// of another project that README.md lists under that name.
//
// The tests need Linux with overlayfs, root, and the go command with a module proxy. On Debian they download runc
// (unless it is in PATH) and containerd 1.6 with apt-get, whose lists must exist, and unpack them below .cache.
// Elsewhere runc must be in PATH, and there is no 1.6.
//
// With E2E_TOOLS in the environment only the tools that it names are built, of those that take minutes: nerdctl,
// runsc (of gVisor) and multus. Tests that need another fail. -soak is the duration of each part of TestSoak.
//
// Only .cache stays: processes, mounts and namespaces end with the first process of the namespaces, and that ends
// with the tests and with the process that go test started.
package containerd
