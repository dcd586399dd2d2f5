// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// progress returns a function that says on stderr which of n networks is looked
// at, in one line that it takes away in the end. It is silent for a single
// network and where stderr is no terminal.
func (a *app) progress(n int) func(i int, network string) {
	if n < 2 || a.errScreen.Width == 0 {
		return func(int, string) {}
	}
	return func(i int, network string) {
		if i == n {
			fmt.Fprint(a.stderr, "\r\x1b[K")
			return
		}
		line := fmt.Sprintf("Looking at network %d of %d: %s", i+1, n, network)
		fmt.Fprintf(a.stderr, "\r\x1b[K%s", line[:min(len(line), a.errScreen.Width-1)])
	}
}
