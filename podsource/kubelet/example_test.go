// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"fmt"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kubelet"
)

// If kubelet does not serve the Pods API, the API server is asked.
func ExampleNew() {
	fromKubelet, err := kubelet.New("/no-such-directory/pods-api.sock")
	if err != nil {
		fmt.Println(err)
		return
	}
	fromAPIServer := podsource.Static{{UID: "6ba7b810"}}
	answer, err := podsource.Fallback(fromKubelet, fromAPIServer).Pods(context.Background())
	fmt.Println(len(answer.Pods), err)
	// Output: 1 <nil>
}
