// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/hazardtable"
)

// TestHazardTable: hazards.md matches the tests and the package comment.
func TestHazardTable(t *testing.T) { hazardtable.Check(t) }
