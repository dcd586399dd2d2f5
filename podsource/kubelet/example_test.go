// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet"
)

// If kubelet does not serve the Pods API, the API server is asked.
func ExampleNew() {
	fromKubelet, err := kubelet.New("/no-such-directory/pods-api.sock", kubelet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fromAPIServer := podsource.Static{{UID: "6ba7b810"}}
	answer, err := podsource.Fallback(fromKubelet, fromAPIServer).Pods(context.Background())
	fmt.Println(len(answer.Pods), err)
	// Output: 1 <nil>
}

// A kubelet with another root directory, on a node with large pods.
func ExampleOptions() {
	socket := strings.Replace(kubelet.DefaultSocket, "/var/lib/kubelet", "/data/kubelet", 1)
	_, err := kubelet.New(socket, kubelet.Options{MaxBytes: 512 << 20})
	fmt.Println(err)
	_, err = kubelet.New("pods-api.sock", kubelet.Options{MaxBytes: -1})
	fmt.Println(err)
	// Output:
	// <nil>
	// making a kubelet source: the socket "pods-api.sock" is not an absolute path
	// Options.MaxBytes is -1; it must not be negative
}
