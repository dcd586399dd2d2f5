// SPDX-License-Identifier: Apache-2.0

//go:build !go1.25

package gc

import "testing"

// inBubble needs testing/synctest, which Go 1.24 does not have.
func inBubble(func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { t.Skip("testing/synctest needs Go 1.25") }
}
