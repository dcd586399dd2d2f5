// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/netns"
)

// openNetNS returns a source that asks the kernel.
func openNetNS(arg string, _ *Env) (podsource.Source, error) {
	if arg != "" && arg != "nested" {
		return nil, fmt.Errorf("there is no %q; only \"nested\" may stand there", arg)
	}
	return netns.New(netns.Options{Nested: arg == "nested"})
}
