// SPDX-License-Identifier: Apache-2.0

//go:build !race

package main

// raceEnabled says how the server is built for the tests: as they are.
const raceEnabled = false
