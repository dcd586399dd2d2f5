// SPDX-License-Identifier: Apache-2.0

// Quickstart shows on one screen what the library does, without root, cluster or flags: in a
// temporary data directory host-local's own code reserves addresses, some of them leak as on a
// real node, and one pass releases those. Read it from top to bottom.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

const network = "podnet"

// adds are the CNI ADDs of the past, each with one address, and what became of them.
var adds = []struct {
	ip, container string
	age           time.Duration
	live          bool
	since         string
}{
	{"10.244.1.2", "cache", 76 * time.Hour, false, "power loss in the ADD, the file is empty"},
	{"10.244.1.3", "coredns", 75 * time.Hour, true, "runs"},
	{"fd00:10:244:1::2", "coredns", 75 * time.Hour, true, "its second address"},
	{"10.244.1.4", "report", 30 * time.Hour, false, "the runtime crashed, and no DEL came"},
	{"fd00:10:244:1::3", "report", 30 * time.Hour, false, "its second address"},
	{"10.244.1.5", "mysql", 20 * time.Hour, false, "another container has its address"},
	{"10.244.1.6", "web", 9 * time.Hour, true, "runs"},
	{"10.244.1.7", "shell", 20 * time.Second, false, "the agent was killed in the ADD"},
}

// id makes up a container ID.
func id(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

func main() {
	dataDir, err := os.MkdirTemp("", "quickstart-")
	if err == nil {
		var out string
		out, err = tour(context.Background(), dataDir)
		err = errors.Join(err, os.RemoveAll(dataDir))
		fmt.Print(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func tour(ctx context.Context, dataDir string) (string, error) {
	// 1. A node at work: the plugin reserves addresses, and time passes.
	plugin, err := disk.New(network, dataDir)
	if err != nil {
		return "", err
	}
	for _, a := range adds {
		if _, err := plugin.Reserve(id(a.container), "eth0", net.ParseIP(a.ip), "0"); err != nil {
			return "", err
		}
		file, then := disk.GetEscapedPath(filepath.Join(dataDir, network), a.ip), time.Now().Add(-a.age)
		if strings.Contains(a.since, "power loss") { // host-local does not sync what it writes
			err = os.Truncate(file, 0)
		}
		if err := errors.Join(err, os.Chtimes(file, then, then)); err != nil {
			return "", err
		}
	}

	// 2. What is live. This agent has a store of all interfaces that it makes. Others ask kubelet or the API
	// server, the container runtime and the kernel, all at once with podsource/node.
	source := podsource.Attachments([]string{network}, podsource.Always, func(context.Context) (all []podsource.Attachment, err error) {
		for _, a := range adds {
			if a.live {
				all = append(all, podsource.Attachment{Network: network, ContainerID: id(a.container)})
			}
		}
		mysql := podsource.Attachment{Network: network, ContainerID: id("mysql again"), IPs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}}
		return append(all, mysql), nil
	})

	// 3. The pass at the start of the agent, before it serves an ADD, so none is in flight.
	reconciler, err := gc.New(hostlocal.New(dataDir), []string{network}, source, gc.Options{})
	if err != nil {
		return "", err
	}
	report, err := reconciler.AtStartup(ctx, gc.NoADDInFlight)

	// 4. The verdict on each reservation, and why.
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ADDRESS\tCONTAINER\tSINCE ITS ADD\tVERDICT\tREASON")
	for _, e := range report.Reservations {
		for _, a := range adds {
			if a.ip == e.IP.String() {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", a.ip, a.container, a.since, e.Verdict, e.Reason)
			}
		}
	}
	counts := report.Counts()
	err = errors.Join(err, table.Flush(), plugin.Close())
	fmt.Fprintf(&out, "%d released, %d in use, %d for a person to decide\n", counts[gc.Released], counts[gc.InUse], counts[gc.Conflict])
	return out.String(), err
}
