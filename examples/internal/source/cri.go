// SPDX-License-Identifier: Apache-2.0

package source

import (
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// openCRI returns a source that asks a container runtime. It also asks for addresses, so that
// conflicts are shown.
func openCRI(endpoint string, env *Env) (podsource.Source, error) {
	return cri.New(endpoint, cri.Options{WithStatus: true, Logger: env.Logger})
}
