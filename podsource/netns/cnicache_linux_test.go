// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// Passes with the kernel and a cache of CNI results. No container but one shows its address.
//
// Guard: [Source.Living] reports that an entry's namespace exists, and [Source.Pods] has the
// addresses that a cache must know, and declares that it has every ADD in flight.
func TestHazardsOfTheCache(t *testing.T) {
	if !onNode(t) {
		return
	}
	whole, wrong, missing := t.TempDir(), t.TempDir(), t.TempDir()+"/missing"
	cached := func(dir, containerID, netNS string) { // as libcni writes it after an ADD
		text := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"podnet","netns":%q}`, containerID, netNS)
		path, at := filepath.Join(dir, "podnet-"+containerID+"-eth0"), time.Now().Add(-time.Hour)
		if os.WriteFile(path, []byte(text), 0o600) != nil || os.Chtimes(path, at, at) != nil {
			t.Fatal("an entry can't be written")
		}
	}
	mountNamespace(t, "/run/netns/cni-1")
	mountNamespace(t, "/run/netns/cni-2", "10.0.0.6")
	_, stop := startADD(t, "ADD", id("add"), "/run/netns/cni-4")
	cached(whole, id("51039"), "/var/run/netns/cni-1")
	cached(whole, id("5ee9"), "/run/netns/cni-2")
	cached(whole, id("0e3"), "/run/netns/cni-3")
	cached(wrong, id("1eaced"), "/run/netns/cni-3")
	owners := map[string]string{
		"10.0.0.2": id("51039"), "10.0.0.3": id("0e3"), "10.0.0.4": id("add"), "10.0.0.5": id("1eaced"), "10.0.0.6": id("5ee9"),
	}
	const ended = "the namespace is gone, and an ADD has failed"
	live, seen, leak := gc.ContainerLive, gc.AddressClaimed, gc.ReleasedLeak
	for _, row := range []struct {
		reason  string
		cache   string
		runtime bool
		age     time.Duration
		want    reasons // of the owners' reservations that there are
	}{
		{"59 the namespace shows no address, and the runtime lost the record", whole, true, time.Hour,
			reasons{"10.0.0.2": live, "10.0.0.3": leak, "10.0.0.5": leak, "10.0.0.6": live}},
		{"71 seconds after its ADD only the cache names the container", whole, false, 5 * time.Second,
			reasons{"10.0.0.2": live, "10.0.0.4": live, "10.0.0.5": leak, "10.0.0.6": live}},
		{"... a moment after it", whole, false, 0, reasons{"10.0.0.2": live, "10.0.0.5": gc.TooYoung}},
		{"70 a cache without the container whose address is seen: it proves nothing", wrong, false, 5 * time.Second,
			reasons{"10.0.0.2": gc.NoSourceForNetwork, "10.0.0.5": gc.NoSourceForNetwork, "10.0.0.6": seen}},
		{"... beside a runtime, which may list containers later", wrong, true, 5 * time.Second,
			reasons{"10.0.0.2": gc.NotYetListed, "10.0.0.5": gc.NotYetListed, "10.0.0.6": seen}},
		{"70 no cache", missing, false, 5 * time.Second, reasons{"10.0.0.2": gc.NoSourceForNetwork, "10.0.0.6": seen}},
		{ended, whole, false, 5 * time.Second, reasons{"10.0.0.2": leak, "10.0.0.4": leak, "10.0.0.6": live}},
	} {
		if row.reason == ended {
			unmount(t, "/run/netns/cni-1")
			stop()
		}
		store := newStore(t, nil)
		for ip := range row.want {
			reserve(t, store, ip, owners[ip], row.age)
		}
		kernel := nested(t)
		cache, err := cnicache.New(cnicache.Options{Dirs: []string{row.cache}, Living: kernel.Living})
		if err != nil {
			t.Fatal(err)
		}
		sources := []podsource.Source{kernel, cache}
		if row.runtime {
			sources = append(sources, runtimeSource)
		}
		checkPass(t, row.reason, store, podsource.Union(sources...), 2*time.Second, row.want)
	}
}
