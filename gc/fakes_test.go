// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// hex64 returns a container ID as the runtimes of Kubernetes make them.
func hex64(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

var (
	every   = []string{podsource.EveryNetwork} // all networks
	errAway = errors.New("server is away")
)

// The fakes below return the answers and declarations of the sources of their names.

// criAnswer lists sandboxes by their IDs, minutes after their ADD, and one in the node's
// network.
func criAnswer(pods ...podsource.Pod) podsource.Answer {
	return podsource.Answer{
		Source: "cri",
		Pods:   append([]podsource.Pod{{UID: "proxy", ContainerIDs: []string{hex64("proxy")}, HostNetwork: true}}, pods...),
		Names:  podsource.SandboxContainers, Networks: every,
	}
}

// kubeletAnswer lists Kubernetes pods, and one in the node's network.
func kubeletAnswer(pods ...podsource.Pod) podsource.Answer {
	return podsource.Answer{
		Source:   "kubelet",
		Pods:     append([]podsource.Pod{{NamespacedName: named("proxy"), UID: "proxy", HostNetwork: true}}, pods...),
		Networks: every,
	}
}

// netnsAnswer lists ADDs in flight and addresses in network namespaces.
func netnsAnswer(pods ...podsource.Pod) podsource.Answer {
	return podsource.Answer{Source: "netns", Pods: pods, SeesADDs: every, SeesAddresses: true, Supplementary: true}
}

// cacheAnswer lists the attachments in libcni's cache whose namespaces exist. Those that
// ended are only in entries.
func cacheAnswer(pods []podsource.Pod, entries ...podsource.Attachment) podsource.Answer {
	for _, p := range pods {
		for _, id := range p.ContainerIDs {
			entries = append(entries, podsource.Attachment{Network: p.Network, ContainerID: id})
		}
	}
	return podsource.Answer{
		Source: "cnicache", Pods: pods, Supplementary: true, Names: podsource.AnyContainer, AtOnce: true,
		Cache: &podsource.Cache{Entries: entries, Since: map[string]time.Time{"podnet": time.Unix(1, 0), "second": time.Unix(1, 0)}},
	}
}

// recordAnswer lists the attachments in an agent's own record of some networks.
func recordAnswer(networks []string, ids ...string) podsource.Answer {
	a := podsource.Answer{
		Source: "checkpoint", Authoritative: true, Networks: networks,
		Names: podsource.AnyContainer, AtOnce: true,
	}
	for _, id := range ids {
		a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{id}})
	}
	return a
}

// sandbox is a pod as a runtime lists it.
func sandbox(uid, containerID string, addresses ...string) podsource.Pod {
	return podsource.Pod{UID: types.UID(uid), ContainerIDs: []string{containerID}, IPs: ips(addresses...)}
}

// startingPod is a pod as kubelet lists it before it has an address.
func startingPod(name string, startedAt time.Time) podsource.Pod {
	return podsource.Pod{NamespacedName: named(name), UID: types.UID(name), StartedAt: startedAt}
}

// starts is a starting pod that claims every reservation.
func starts() podsource.Pod { return startingPod("web", time.Time{}) }

// configured is an address in a network namespace.
func configured(address string) podsource.Pod {
	return podsource.Pod{IPs: []netip.Addr{netip.MustParseAddr(address)}, Origin: "namespace of " + address}
}

// sees returns reservations as they are listed, in order.
func (c *clock) sees(at reading, all []hostlocal.Reservation) []candidate {
	c.see(at, all)
	return c.files
}

// answers is a union of sources that return the same answers each time.
func answers(members ...podsource.Answer) podsource.Source { return inTurn(members) }

// A script is a source that returns one of its answers after the other, and then the last
// one again.
type script struct {
	looks [][]podsource.Answer

	mu    sync.Mutex
	asked []time.Time
}

// inTurn returns a script.
func inTurn(looks ...[]podsource.Answer) *script { return &script{looks: looks} }

func (s *script) Pods(context.Context) (podsource.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	look := s.looks[min(len(s.asked), len(s.looks)-1)]
	s.asked = append(s.asked, time.Now())
	return podsource.Answer{Parts: slices.Clone(look)}, nil
}

// times returns when the source was asked.
func (s *script) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// plain is an answer without declarations, as one part of a script.
func plain(pods ...podsource.Pod) []podsource.Answer {
	return []podsource.Answer{{Pods: pods, Networks: every}}
}

// logs collects log lines up to a verbosity.
type logs struct {
	verbosity int
	mu        sync.Mutex
	lines     []map[string]any
}

func newLogs(verbosity int) *logs { return &logs{verbosity: verbosity} }

func (l *logs) logger() logr.Logger {
	return funcr.NewJSON(func(line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var keys map[string]any
		if err := json.Unmarshal([]byte(line), &keys); err != nil {
			keys = map[string]any{"msg": "not JSON: " + line}
		}
		l.lines = append(l.lines, keys)
	}, funcr.Options{Verbosity: l.verbosity})
}

// with returns the number of lines with a message and a key.
func (l *logs) with(msg, key string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if _, ok := line[key]; ok && line["msg"] == msg {
			n++
		}
	}
	return n
}
