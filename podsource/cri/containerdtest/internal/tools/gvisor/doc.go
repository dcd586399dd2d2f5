// SPDX-License-Identifier: Apache-2.0

// Package gvisor is there for its go.mod, which has gVisor's runsc as a tool. It is
// of the branch "go", which is what the go command can build.
package gvisor
