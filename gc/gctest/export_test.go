// SPDX-License-Identifier: Apache-2.0

package gctest

import "testing"

// Problems returns what TestSource finds, by the names of hazards.
func Problems(t *testing.T, fixture func(*testing.T) Fixture) map[string]string {
	all := make(map[string]string)
	for _, h := range hazards {
		t.Run(h.name, func(t *testing.T) { // so that Uptime ends
			if problem := play(t, fixture(t), h.script); problem != "" {
				all[h.name] = problem
			}
		})
	}
	return all
}
