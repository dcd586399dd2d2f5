// SPDX-License-Identifier: Apache-2.0

// Package gvisor exists for its go.mod, which has gVisor's runsc as a tool. The version is of
// the branch "go", which the go command can build.
package gvisor
