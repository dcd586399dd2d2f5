// SPDX-License-Identifier: Apache-2.0

package source

import (
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet"
)

// openKubelet returns a source that asks kubelet on its default socket, or on the given one if
// kubelet has another root directory.
func openKubelet(socket string, _ *Env) (podsource.Source, error) {
	return kubelet.New(socket, kubelet.Options{})
}
