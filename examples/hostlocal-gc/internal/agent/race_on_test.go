// SPDX-License-Identifier: Apache-2.0

//go:build race

package agent

// raceDetector builds the agent with the race detector if the tests have it.
var raceDetector = []string{"-race"}
