// SPDX-License-Identifier: Apache-2.0

//go:build race

package agent

// raceDetector is what go build needs for the agent to be watched as its tests
// are.
var raceDetector = []string{"-race"}
