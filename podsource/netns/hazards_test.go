// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/hazardtable"
)

// The table of hazards is what the tests and the package's comment say.
func TestHazardTable(t *testing.T) { hazardtable.Check(t) }
