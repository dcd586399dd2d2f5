// SPDX-License-Identifier: Apache-2.0

// Package nerdctl exists for its go.mod, which has nerdctl as a tool. nerdctl 1.7 needs other
// versions of libraries: those of containerd 1, and libcni 1.1.
package nerdctl
