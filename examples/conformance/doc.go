// SPDX-License-Identifier: Apache-2.0

// Package conformance tries the library's hazards on any collector that is a command. It has tests only.
// README.md says how to try yours.
package conformance
