// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// kubelet knows pods that are still starting, and the runtime knows every sandbox. A missing socket
// is an error, and not a node without pods: then there is no answer (R2).
func Example() {
	kubelet := podsource.Static{{UID: "6ba7b810"}}
	runtime, err := cri.New("unix:///no/such/directory/crio.sock", cri.Options{WithStatus: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = podsource.Union(kubelet, runtime).Pods(context.Background())
	fmt.Println(err)
	fmt.Println(errors.Is(err, podsource.ErrIncomplete))
	// Output:
	// pod source cri: container runtime at unix:///no/such/directory/crio.sock: list of pods is incomplete: there is no socket
	// true
}
