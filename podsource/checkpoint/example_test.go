// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// The first start of an agent on a node with running pods. It asks the runtime for
// them and records their attachments. Then it serves an ADD and its DEL.
func Example() {
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	runtime := podsource.Static{{ContainerIDs: []string{"ee3b0f0c"}}}
	attachmentsOf := func(p podsource.Pod) (entries []checkpoint.Entry, err error) {
		for _, id := range p.ContainerIDs {
			key := checkpoint.Key{Network: "podnet", ContainerID: id, IfName: "eth0"}
			entries = append(entries, checkpoint.Entry{Key: key, Pod: p.NamespacedName, UID: p.UID})
		}
		return entries, nil
	}

	served := checkpoint.Options{Networks: []string{"podnet"}} // this agent serves all ADDs of podnet
	record, err := checkpoint.Open(filepath.Join(dir, "attachments"), served)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = record.Close() }()                                                // writes the time until which the record was kept
	fmt.Println("asked:", record.Backfill(context.Background(), runtime, attachmentsOf)) // at each start, and some minutes after it

	// Now the agent serves. The last step of an ADD, whose namespace is CNI_NETNS:
	added := checkpoint.Key{Network: "podnet", ContainerID: "5c7b9a1e", IfName: "eth0"}
	ips, netns := []netip.Addr{netip.MustParseAddr("10.244.1.3")}, checkpoint.NetNS{Path: "/run/netns/cni-d0b5"}
	fmt.Println("added:", record.Add(checkpoint.Entry{Key: added, IPs: ips, NetNS: netns}))
	// The last step of a DEL, which may be repeated:
	fmt.Println("removed:", record.Remove(added))
	// Output:
	// asked: <nil>
	// added: <nil>
	// removed: <nil>
}
