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
	ctx := context.Background()
	runtime := podsource.Static{{UID: "6ba7b810", ContainerIDs: []string{"ee3b0f0c"}}}
	attachmentsOf := func(p podsource.Pod) (entries []checkpoint.Entry, err error) {
		for _, id := range p.ContainerIDs {
			key := checkpoint.Key{Network: "podnet", ContainerID: id, IfName: "eth0"}
			entries = append(entries, checkpoint.Entry{Key: key, IPs: p.IPs, Pod: p.NamespacedName, UID: p.UID})
		}
		return entries, nil
	}

	served := checkpoint.Options{Networks: []string{"podnet"}} // this agent serves all ADDs of podnet
	record, err := checkpoint.Open(filepath.Join(dir, "attachments"), served)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = record.Close() }()                               // writes the time until which the record was kept
	fmt.Println("asked:", record.Backfill(ctx, runtime, attachmentsOf)) // at each start, and some minutes after it

	// Now the agent serves. The last step of an ADD:
	added := checkpoint.Key{Network: "podnet", ContainerID: "5c7b9a1e", IfName: "eth0"}
	netns := checkpoint.NetNS{Path: "/run/netns/cni-d0b5"} // CNI_NETNS
	fmt.Println("added:", record.Add(checkpoint.Entry{Key: added, IPs: []netip.Addr{netip.MustParseAddr("10.244.1.3")}, NetNS: netns}))
	answer, err := record.Pods(ctx)
	for _, p := range answer.Pods {
		fmt.Println("live:", p.ContainerIDs, p.IPs, err)
	}
	// The last step of a DEL, which may be repeated:
	fmt.Println("removed:", record.Remove(added))
	// Output:
	// asked: <nil>
	// added: <nil>
	// live: [5c7b9a1e] [10.244.1.3] <nil>
	// live: [ee3b0f0c] [] <nil>
	// removed: <nil>
}
