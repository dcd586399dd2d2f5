// SPDX-License-Identifier: Apache-2.0

// Package nerdctl is there for its go.mod, which has nerdctl as a tool, with
// libraries of its own: 1.7 is for containerd 1, and has libcni 1.1.
package nerdctl
