// SPDX-License-Identifier: Apache-2.0

package hostlocal_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// reserve lets the plugin's own code reserve addresses in a data directory.
func reserve() (dataDir string) {
	dataDir, err := os.MkdirTemp("", "hostlocal")
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range []struct{ network, containerID, ifName, ip string }{
		{"podnet", "web", "eth0", "10.244.1.2"},
		{"podnet", "db", "eth0", "10.244.1.3"},
		{"podnet", "cache", "eth0", "10.244.1.10"},
		{"storage", "db", "net1", "192.168.0.2"},
	} {
		plugin, err := disk.New(r.network, dataDir)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := plugin.Reserve(r.containerID, r.ifName, net.ParseIP(r.ip), "0"); err != nil {
			log.Fatal(err)
		}
		_ = plugin.Close()
	}
	return dataDir
}

func ExampleStore_Release() {
	dataDir := reserve()
	defer func() { _ = os.RemoveAll(dataDir) }()

	store := hostlocal.New(dataDir)
	ctx := context.Background()
	list, err := store.List(ctx)
	if err != nil {
		log.Fatal(err)
	}
	var db []*hostlocal.Reservation
	for i, r := range list.Reservations {
		if r.ContainerID == "db" {
			db = append(db, &list.Reservations[i])
		}
	}

	// The second call finds no files: their reservations were released.
	for range 2 {
		result, err := store.Release(ctx, db...)
		if errors.Is(err, hostlocal.ErrLocked) {
			fmt.Println("another process holds the plugin's lock, and nothing was released in its network")
		}
		for i, r := range db {
			fmt.Println(r.Network, r.IP, result.Outcomes[i])
		}
		fmt.Println("an ADD waited for no longer than", min(result.LongestHold, result.LockHeld).Round(time.Second), err)
	}
	// Output:
	// podnet 10.244.1.3 released
	// storage 192.168.0.2 released
	// an ADD waited for no longer than 0s <nil>
	// podnet 10.244.1.3 gone
	// storage 192.168.0.2 gone
	// an ADD waited for no longer than 0s <nil>
}
