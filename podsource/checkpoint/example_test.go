// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// The first start of an agent on a node with running pods. It asks the runtime for
// them and records their attachments. Then it serves an ADD and its DEL, while another process reads the record.
func Example() {
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, path := context.Background(), filepath.Join(dir, "attachments")
	runtime := podsource.Static{{UID: "6ba7b810", ContainerIDs: []string{"ee3b0f0c"}}}
	attachmentsOf := func(p podsource.Pod) (entries []checkpoint.Entry, err error) {
		for _, id := range p.ContainerIDs {
			key := checkpoint.Key{Network: "podnet", ContainerID: id, IfName: "eth0"}
			entries = append(entries, checkpoint.Entry{Key: key, IPs: p.IPs, Pod: p.NamespacedName, UID: p.UID})
		}
		return entries, nil
	}

	served := checkpoint.Options{Networks: []string{"podnet"}} // this agent serves all ADDs of podnet
	record, err := checkpoint.Open(path, served)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = record.Close() }() // writes the time until which the record was kept
	_, err = record.Pods(ctx)
	fmt.Println("never written:", errors.Is(err, podsource.ErrNotHere))
	fmt.Println("asked:", record.Backfill(ctx, runtime, attachmentsOf)) // at each start, and some minutes after it

	// Now the agent serves. The last step of an ADD:
	added := checkpoint.Key{Network: "podnet", ContainerID: "5c7b9a1e", IfName: "eth0"}
	err = record.Add(checkpoint.Entry{
		Key:   added,
		IPs:   []netip.Addr{netip.MustParseAddr("10.244.1.3")},
		NetNS: checkpoint.NetNS{Path: "/run/netns/cni-d0b5"}, // CNI_NETNS
	})
	fmt.Println("added:", err)
	reader, err := checkpoint.New(path, served)
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := reader.Pods(ctx)
	for _, p := range answer.Pods {
		fmt.Println("live:", p.ContainerIDs, p.IPs, err)
	}
	_, err = checkpoint.Open(path, served)
	fmt.Println("a second writer:", errors.Is(err, checkpoint.ErrLocked))

	// The last step of a DEL, which may be repeated:
	fmt.Println("removed:", errors.Join(record.Remove(added), record.Remove(added)))
	for _, e := range record.Entries() {
		fmt.Println(e.Key, e.NetNS.Present())
	}
	gone, err := record.Prune(ctx) // an entry without a namespace stays
	fmt.Println(len(gone), err)
	// Output:
	// never written: true
	// asked: <nil>
	// added: <nil>
	// live: [5c7b9a1e] [10.244.1.3] <nil>
	// live: [ee3b0f0c] [] <nil>
	// a second writer: true
	// removed: <nil>
	// eth0 of container ee3b0f0c in network podnet false
	// 0 <nil>
}
