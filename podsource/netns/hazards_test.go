// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/hazardtable"
)

// hazards.md matches the tests and the package comment.
func TestHazardTable(t *testing.T) { hazardtable.Check(t) }
