// SPDX-License-Identifier: Apache-2.0

package cniconf_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

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

// The networks of a node, as a command finds them in /etc/cni/net.d.
func ExampleReadDir() {
	dir, err := os.MkdirTemp("", "net.d")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for name, conf := range map[string]string{
		"10-calico.conflist": `{"cniVersion": "1.0.0", "name": "k8s", "plugins": [{"type": "calico", "ipam": {"type": "host-local", "subnet": "usePodCidr"}}]}`,
		"20-podnet.conf":     `{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(conf), 0o600); err != nil {
			log.Fatal(err)
		}
	}
	networks, err := cniconf.ReadDir(dir)
	if err != nil {
		log.Fatal(err) // networks has those that could be read
	}
	for _, n := range networks {
		if n.Ranges == nil {
			fmt.Println(n.Name, "has ranges that are known at run time only")
		}
		for _, set := range n.Ranges {
			fmt.Println(n.Name, "has", set.Size(), "addresses")
		}
	}
	// Output:
	// k8s has ranges that are known at run time only
	// podnet has 253 addresses
}
