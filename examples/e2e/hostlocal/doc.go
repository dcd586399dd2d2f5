// SPDX-License-Identifier: Apache-2.0

// Package hostlocal compares the IPAM plugin of examples/ipam with the host-local that it is put in front
// of. Output, exit status and files must be the same, byte for byte, but for what the plugin's README.md
// says. rows_linux_test.go has the configurations. The tests make namespaces, which needs root.
package hostlocal
