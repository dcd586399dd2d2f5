// SPDX-License-Identifier: Apache-2.0

package hostlocal_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// reserve lets the plugin's own code reserve addresses in a data dir of its own.
func reserve() (dataDir string) {
	dataDir, err := os.MkdirTemp("", "hostlocal")
	if err != nil {
		log.Fatal(err)
	}
	plugin, err := disk.New("podnet", dataDir)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = plugin.Close() }()
	for ip, id := range map[string]string{"10.244.1.2": "web", "10.244.1.3": "db", "10.244.1.10": "cache"} {
		if _, err := plugin.Reserve(id, "eth0", net.ParseIP(ip), "0"); err != nil {
			log.Fatal(err)
		}
	}
	return dataDir
}

func ExampleStore_List() {
	dataDir := reserve()
	defer func() { _ = os.RemoveAll(dataDir) }()

	store, err := hostlocal.New(dataDir, "podnet")
	if err != nil {
		log.Fatal(err)
	}
	reservations, err := store.List(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range reservations {
		fmt.Println(r.IP, r.Owner, r.ContainerID, r.IfName)
	}
	// Output:
	// 10.244.1.2 owned web eth0
	// 10.244.1.3 owned db eth0
	// 10.244.1.10 owned cache eth0
}

func ExampleStore_Release() {
	dataDir := reserve()
	defer func() { _ = os.RemoveAll(dataDir) }()

	store, err := hostlocal.New(dataDir, "podnet")
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	reservations, err := store.List(ctx)
	if err != nil {
		log.Fatal(err)
	}

	// Release compares before it deletes, so that the second call finds nothing
	// that it could take for the first one's reservation.
	for range 2 {
		done, err := store.Release(ctx, reservations[1])
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reservations[1].IP, done.Outcomes[0])
	}
	// Output:
	// 10.244.1.3 released
	// 10.244.1.3 gone
}

func ExampleNetworks() {
	dataDir := reserve()
	defer func() { _ = os.RemoveAll(dataDir) }()

	networks, err := hostlocal.Networks(dataDir)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(networks)
	// Output: [podnet]
}
