// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

// isTmpfs reports false: only Linux has it.
func isTmpfs(string) bool { return false }
