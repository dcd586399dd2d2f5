// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// A missing socket is an error, and not a node without pods.
func ExampleNew() {
	runtime, err := cri.New("unix:///no/such/directory/containerd.sock", cri.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := runtime.Pods(context.Background())
	fmt.Println(len(answer.Pods), errors.Is(err, podsource.ErrIncomplete))
	fmt.Println(err)
	// Output:
	// 0 true
	// container runtime at unix:///no/such/directory/containerd.sock: list of pods is incomplete: there is no socket
}

// kubelet knows pods that are still starting, and the runtime knows every sandbox. If one of
// them does not answer, as this runtime, there is no answer (R2).
func Example() {
	kubelet := podsource.Static{{UID: "6ba7b810"}}
	runtime, err := cri.New("unix:///no/such/directory/crio.sock", cri.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = podsource.Union(kubelet, runtime).Pods(context.Background())
	fmt.Println(err)
	// Output:
	// pod source cri: container runtime at unix:///no/such/directory/crio.sock: list of pods is incomplete: there is no socket
}

// A search for the runtime: at the endpoint in crictl's configuration, and at the default
// endpoints.
func ExampleOptions() {
	source, err := cri.New("", cri.Options{
		CrictlConfig: "/host/etc/crictl.yaml", // the path in the agent's container
		WithStatus:   true,                    // also the addresses of sandboxes
		MaxAnswer:    16 << 20,
		Logger:       logr.Discard(), // logs which runtimes were found
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(source.Endpoints()) // those that have answered so far
	fmt.Println(slices.Contains(cri.DefaultEndpoints(), "unix:///run/containerd/containerd.sock"))
	// Output:
	// []
	// true
}
