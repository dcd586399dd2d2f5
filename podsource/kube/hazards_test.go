// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/internal/hazardtable"
)

func TestHazardTable(t *testing.T) { hazardtable.Check(t, "servertest") }
