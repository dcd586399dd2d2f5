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

// The first start of an agent on a node where pods run already: it asks the
// runtime, writes down what it was told, and needs the runtime no more.
func Example() {
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	runtime := podsource.Static{{UID: "6ba7b810", ContainerIDs: []string{"ee3b0f0c"}}}

	served := checkpoint.Options{Networks: []string{"podnet"}} // those of which this agent serves the ADDs
	record, err := checkpoint.Open(filepath.Join(dir, "attachments"), served)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = record.Close() }()
	_, err = record.Pods(ctx)
	fmt.Println("never written:", errors.Is(err, podsource.ErrNotHere))

	source := podsource.Fallback(record, runtime) // for the start-up hook, which runs here
	show(source.Pods(ctx))

	if errors.Is(err, podsource.ErrNotHere) {
		err = record.Backfill(ctx, runtime, func(p podsource.Pod) (entries []checkpoint.Entry, err error) {
			for _, id := range p.ContainerIDs {
				key := checkpoint.Key{Network: "podnet", ContainerID: id, IfName: "eth0"}
				entries = append(entries, checkpoint.Entry{Key: key, IPs: p.IPs, Pod: p.NamespacedName, UID: p.UID})
			}
			return entries, nil
		})
		fmt.Println("backfilled:", err)
	}

	// From here on the agent serves. The last step of an ADD:
	added := checkpoint.Key{Network: "podnet", ContainerID: "5c7b9a1e", IfName: "eth0"}
	err = record.Add(checkpoint.Entry{
		Key:   added,
		IPs:   []netip.Addr{netip.MustParseAddr("10.244.1.3")},
		NetNS: checkpoint.NetNS{Path: "/run/netns/cni-d0b5"}, // CNI_NETNS
	})
	fmt.Println("added:", err)
	show(source.Pods(ctx))

	// The last step of a DEL, which may come twice:
	fmt.Println("removed:", errors.Join(record.Remove(added), record.Remove(added)))
	show(source.Pods(ctx))
	// Output:
	// never written: true
	// live: [ee3b0f0c] []
	// backfilled: <nil>
	// added: <nil>
	// live: [5c7b9a1e] [10.244.1.3]
	// live: [ee3b0f0c] []
	// removed: <nil>
	// live: [ee3b0f0c] []
}

func show(answer podsource.Answer, err error) {
	if err != nil {
		fmt.Println(err)
	}
	for _, p := range answer.Pods {
		fmt.Println("live:", p.ContainerIDs, p.IPs)
	}
}

// A second process, such as the operator's command, reads the same record and
// can't write it.
func ExampleRead() {
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "attachments")
	served := checkpoint.Options{Networks: []string{"podnet"}}
	record, err := checkpoint.Open(path, served)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = record.Close() }()
	// No pod runs here, and the caller knows.
	if err := record.Backfill(context.Background(), podsource.AllowEmpty(podsource.Static{}), nil); err != nil {
		fmt.Println(err)
	}
	if err := record.Add(checkpoint.Entry{Key: checkpoint.Key{Network: "podnet", ContainerID: "ee3b0f0c", IfName: "eth0"}}); err != nil {
		fmt.Println(err)
	}

	show(checkpoint.Read(path, served).Pods(context.Background()))
	_, err = checkpoint.Open(path, served)
	fmt.Println(errors.Is(err, checkpoint.ErrLocked))
	// Output:
	// live: [ee3b0f0c] []
	// true
}
