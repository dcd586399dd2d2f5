// SPDX-License-Identifier: Apache-2.0

package cnicache_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// Two attachments are in the cache, and the network namespace of one of them exists. Here
// the function living stands for that of package netns.
func Example() {
	dir, err := os.MkdirTemp("", "results")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // a directory for temporary files
	for _, id := range []string{"ee3b0f0c", "5c7b9a1e"} {
		entry := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"networkName":"podnet","netns":"/run/netns/%s"}`, id, id)
		if err := os.WriteFile(filepath.Join(dir, "podnet-"+id+"-eth0"), []byte(entry), 0o600); err != nil {
			log.Panic(err)
		}
	}
	living := func(context.Context) (func(path string, at time.Time) (lives, sure bool), error) {
		return func(path string, _ time.Time) (lives, sure bool) { return path == "/run/netns/ee3b0f0c", true }, nil
	}
	cache, err := cnicache.New(cnicache.Options{Dirs: []string{dir}, Living: living})
	if err != nil {
		log.Panic(err)
	}
	answer, err := cache.Pods(context.Background())
	fmt.Println(len(answer.Cache.Entries), len(answer.Pods), answer.Pods[0].ContainerIDs, err)
	// Output: 2 1 [ee3b0f0c] <nil>
}
