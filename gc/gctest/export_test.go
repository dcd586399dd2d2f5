// SPDX-License-Identifier: Apache-2.0

package gctest

import (
	"strings"
	"testing"
)

// Problem returns what TestSource finds by the hazards whose names have this part.
func Problem(t *testing.T, fixture func(*testing.T) Fixture, part string) (problem string) {
	for _, h := range hazards {
		if strings.Contains(h.name, part) {
			t.Run(h.name, func(t *testing.T) { problem += play(t, fixture(t), h.script) }) // so that Uptime ends
		}
	}
	return problem
}
