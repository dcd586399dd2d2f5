// SPDX-License-Identifier: Apache-2.0

package cnigc_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc"
)

// A plugin makes a source of a GC request from its standard input, for a pass over the
// network of the request.
func ExampleNew() {
	stdin := []byte(`{
		"cniVersion": "1.1.0",
		"name": "podnet",
		"type": "vendor",
		"cni.dev/valid-attachments": [
			{"containerID": "ee3b0f0c", "ifname": "eth0"},
			{"containerID": "ee3b0f0c", "ifname": "net1"},
			{"containerID": "5c7b9a1e", "ifname": "eth0"}
		]
	}`)
	source, err := cnigc.New(stdin, cnigc.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := source.Pods(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(answer.Source, answer.Networks, source.Network())
	for _, p := range answer.Pods {
		fmt.Println(p.ContainerIDs)
	}

	_, err = cnigc.New([]byte(`{"cniVersion": "1.1.0", "name": "podnet", "type": "vendor"}`), cnigc.Options{})
	fmt.Println(err)
	// Output:
	// cnigc [podnet] podnet
	// [5c7b9a1e]
	// [ee3b0f0c]
	// reading a CNI GC request: it has no "cni.dev/valid-attachments", the list of valid attachments
}

// No attachment is valid, so no container of the network is live. The source is valid for a
// minute, because the request does not name later attachments.
func ExampleOptions() {
	source, err := cnigc.New([]byte(`{"cniVersion": "1.1.0", "name": "podnet", "type": "vendor", "cni.dev/valid-attachments": []}`),
		cnigc.Options{MaxAge: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := source.Pods(context.Background())
	fmt.Println(len(answer.Pods), answer.Authoritative, err)
	// Output: 0 true <nil>
}
