// SPDX-License-Identifier: Apache-2.0

package term

import "golang.org/x/sys/windows"

// understandsColour enables escape sequences in the console, which are off by default, and reports
// whether that worked.
func understandsColour(fd int) bool {
	h := windows.Handle(fd)
	var mode uint32
	if err := windows.GetConsoleMode(h, &mode); err != nil {
		return false
	}
	return windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
