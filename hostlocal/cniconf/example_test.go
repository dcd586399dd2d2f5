// SPDX-License-Identifier: Apache-2.0

package cniconf_test

import (
	"fmt"
	"log"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
)

func ExampleParse() {
	networks, err := cniconf.Parse([]byte(`{
		"cniVersion": "1.0.0",
		"name": "podnet",
		"plugins": [
			{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/cni", "subnet": "10.244.1.0/24"}},
			{"type": "portmap", "capabilities": {"portMappings": true}}
		]
	}`))
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range networks {
		r := n.Ranges[0][0]
		fmt.Println(n.Name, "in", n.DataDir, "by", n.Plugin)
		fmt.Println(r.First, "to", r.Last, "but", r.Gateway)
	}
	// Output:
	// podnet in /run/cni by ptp
	// 10.244.1.1 to 10.244.1.254 but 10.244.1.1
}
