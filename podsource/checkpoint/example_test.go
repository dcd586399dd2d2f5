// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// The first start of an agent on a node with running pods. It asks the runtime for
// them and records their attachments. While the runtime may not list the latest
// attachments, both sources are asked.
func Example() {
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		fmt.Println(err)
		return
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
		fmt.Println(err)
		return
	}
	defer func() { _ = record.Close() }() // writes the time until which the record was kept
	_, err = record.Pods(ctx)
	fmt.Println("never written:", errors.Is(err, podsource.ErrNotHere))

	err = record.Backfill(ctx, runtime, attachmentsOf) // at each start, and some minutes after it
	fmt.Println("asked:", err)
	source := podsource.Union(record, runtime) // for AtStartup, which is called here, and for the loop
	show(source.Pods(ctx))

	// Now the agent serves. The last step of an ADD:
	added := checkpoint.Key{Network: "podnet", ContainerID: "5c7b9a1e", IfName: "eth0"}
	err = record.Add(checkpoint.Entry{
		Key:   added,
		IPs:   []netip.Addr{netip.MustParseAddr("10.244.1.3")},
		NetNS: checkpoint.NetNS{Path: "/run/netns/cni-d0b5"}, // CNI_NETNS
	})
	fmt.Println("added:", err)
	show(record.Pods(ctx))

	// The last step of a DEL, which may be repeated:
	fmt.Println("removed:", errors.Join(record.Remove(added), record.Remove(added)))
	show(record.Pods(ctx))
	// Output:
	// never written: true
	// asked: <nil>
	// live: [ee3b0f0c] []
	// live: [ee3b0f0c] []
	// added: <nil>
	// live: [5c7b9a1e] [10.244.1.3]
	// live: [ee3b0f0c] []
	// removed: <nil>
	// live: [ee3b0f0c] []
}

// A version of the agent without a record served for an hour. The record does not
// speak of that hour. So attachments of that time keep their addresses, and leaks are
// released when the runtime would have listed their containers.
func Example_rollback() {
	dir, err := os.MkdirTemp("", "rollback")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path, dataDir := filepath.Join(dir, "attachments"), filepath.Join(dir, "networks")
	served := checkpoint.Options{Networks: []string{"podnet"}}
	ctx := context.Background()

	record, err := checkpoint.Open(path, served)
	if err == nil {
		err = errors.Join(record.Backfill(ctx, podsource.AllowEmpty(podsource.Static{}), nil), record.Close())
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	live, leaked := strings.Repeat("5c7b9a1e", 8), strings.Repeat("d0b5ee3b", 8)
	// The other version serves two ADDs, and one DEL gets lost.
	for ip, containerID := range map[string]string{"10.244.1.2": live, "10.244.1.3": leaked} {
		if err := reserve(dataDir, ip, containerID); err != nil {
			fmt.Println(err)
			return
		}
	}
	runtime := podsource.Static{{ContainerIDs: []string{live}}}

	if record, err = checkpoint.Open(path, served); err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = record.Close() }()
	for _, set := range []struct {
		name   string
		source podsource.Source
	}{{"the record alone", record}, {"the record and the runtime", podsource.Union(record, runtime)}} {
		reconciler, err := gc.New(hostlocal.New(dataDir), served.Networks, set.source, gc.Options{})
		if err != nil {
			fmt.Println(err)
			return
		}
		report, err := reconciler.AtStartup(ctx, gc.NoADDInFlight)
		if err != nil {
			fmt.Println(err)
		}
		for _, e := range report.Reservations {
			fmt.Println(set.name+":", e.IP, e.Verdict, e.Reason)
		}
	}
	// Output:
	// the record alone: 10.244.1.2 foreign not-recorded
	// the record alone: 10.244.1.3 foreign not-recorded
	// the record and the runtime: 10.244.1.2 in-use container-live
	// the record and the runtime: 10.244.1.3 young too-young
}

// reserve writes a reservation as host-local does.
func reserve(dataDir, ip, containerID string) error {
	file := filepath.Join(dataDir, "podnet", ip)
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(containerID+"\r\neth0"), 0o600))
}

func show(answer podsource.Answer, err error) {
	if err != nil {
		fmt.Println(err)
	}
	for _, member := range answer.Members() {
		for _, p := range member.Pods {
			fmt.Println("live:", p.ContainerIDs, p.IPs)
		}
	}
}

// A second process, such as an operator's command, can read the record while the agent
// has it open.
func ExampleNew() {
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
	// The caller asserts that no pod runs here.
	if err := record.Backfill(context.Background(), podsource.AllowEmpty(podsource.Static{}), nil); err != nil {
		fmt.Println(err)
	}
	if err := record.Add(checkpoint.Entry{Key: checkpoint.Key{Network: "podnet", ContainerID: "ee3b0f0c", IfName: "eth0"}}); err != nil {
		fmt.Println(err)
	}

	source, err := checkpoint.New(path, served)
	if err != nil {
		fmt.Println(err)
		return
	}
	show(source.Pods(context.Background()))
	_, err = checkpoint.Open(path, served)
	fmt.Println(errors.Is(err, checkpoint.ErrLocked))
	// Output:
	// live: [ee3b0f0c] []
	// true
}

// Other uses of a record: CHECK looks up an attachment, a command lists all, and a loop
// removes those whose network namespaces have ended.
func ExampleCheckpoint() {
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	record, err := checkpoint.Open(filepath.Join(dir, "attachments"), checkpoint.Options{
		Networks: []string{"podnet"},
		Lag:      7 * time.Minute, // 2 T and 3 minutes, T being kubelet's runtimeRequestTimeout
		BootID:   "c1f2a3b4",      // in a test; an agent leaves it out
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = record.Close() }()
	if err := record.Backfill(context.Background(), podsource.AllowEmpty(podsource.Static{}), nil); err != nil {
		fmt.Println(err)
		return
	}
	key := checkpoint.Key{Network: "podnet", ContainerID: "ee3b0f0c", IfName: "eth0"}
	if err := record.Add(checkpoint.Entry{Key: key, IPs: []netip.Addr{netip.MustParseAddr("10.244.1.2")}}); err != nil {
		fmt.Println(err)
		return
	}

	entry, found := record.Get(key)
	fmt.Println(found, entry.IPs, entry.Time.IsZero(), entry.NetNS.Present())
	for _, e := range record.Entries() {
		fmt.Println(e.Key)
	}
	gone, err := record.Prune(context.Background()) // an entry without a namespace stays
	fmt.Println(len(gone), err)
	// Output:
	// true [10.244.1.2] false false
	// eth0 of container ee3b0f0c in network podnet
	// 0 <nil>
}

// Add records the identity of the network namespace, which shows later that it has
// ended. If nothing is at the path, the identity is unknown, and the entry counts as
// live.
func ExampleNetNS() {
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	record, err := checkpoint.Open(filepath.Join(dir, "attachments"), checkpoint.Options{Networks: []string{"podnet"}})
	if err == nil {
		err = record.Backfill(context.Background(), podsource.AllowEmpty(podsource.Static{}), nil)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = record.Close() }()
	key := checkpoint.Key{Network: "podnet", ContainerID: "ee3b0f0c", IfName: "eth0"}
	err = record.Add(checkpoint.Entry{Key: key, NetNS: checkpoint.NetNS{Path: "/no/such/directory/cni-d0b5"}})
	fmt.Println(err)

	entry, _ := record.Get(key)
	ns := entry.NetNS
	fmt.Println("namespace:", ns.Inode, ns.ID)
	show(record.Pods(context.Background()))
	// Output:
	// <nil>
	// namespace: 0 0
	// live: [ee3b0f0c] []
}

// A file that can't be read is never overwritten. A person moves it away, and the next
// start writes a new one.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	served := checkpoint.Options{Networks: []string{"podnet"}}
	for name, content := range map[string]string{"damaged": "{", "new": `{"format":"hostlocal-gc/attachments/99"}`} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			fmt.Println(err)
			return
		}
		_, err := checkpoint.Open(path, served)
		switch {
		case errors.Is(err, checkpoint.ErrVersion):
			fmt.Println(name, "has another format than", checkpoint.Format)
		case errors.Is(err, checkpoint.ErrCorrupt):
			fmt.Println(name, "is damaged")
		}
	}
	// Unordered output:
	// damaged is damaged
	// new has another format than hostlocal-gc/attachments/4
}
