// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// intents are the requests that are not finished: each ADD or DEL is among them before its
// first step, and until its last one, with all that the server needs to undo the ADD or to
// complete the DEL. They are a source of pods.
//
// The record can't replace them, since it has complete attachments only. If the server died
// after plumbing and before recording, nothing would tell which namespace has the address.
// After a boot no namespace has one: so they are in a file on a file system that a boot empties,
// and it needs no fsync.
type intents struct {
	path     string
	networks []string  // the served ones
	opened   time.Time // when the record was opened

	mu   sync.Mutex          // guards left
	left map[string]*request // as in the file, by the attachment's key; replaced, never changed
}

// load reads the intents of the server before this one.
func (in *intents) load() error {
	content, err := os.ReadFile(in.path)
	if errors.Is(err, fs.ErrNotExist) {
		in.left = make(map[string]*request)
		return nil
	}
	if err == nil {
		err = json.Unmarshal(content, &in.left)
	}
	if err != nil {
		err = fmt.Errorf("reading the unfinished requests: %w; if %s is damaged, reboot, or end all pods and remove it", err, in.path)
	}
	return err
}

// set notes the request of an attachment, or with nil that none is left. A server that is
// killed leaves the old file or the new one.
func (in *intents) set(k checkpoint.Key, r *request) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	next := maps.Clone(in.left)
	if next[k.String()] = r; r == nil {
		delete(next, k.String())
	}
	content, _ := json.Marshal(next) // it has only strings and bytes
	err := os.WriteFile(in.path+".tmp", content, 0o600)
	if err == nil {
		err = os.Rename(in.path+".tmp", in.path)
	}
	if err == nil {
		in.left = next
	}
	return err
}

// all returns the intents by the keys of their attachments. The map must not be changed.
func (in *intents) all() map[string]*request {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.left
}

// Rank orders the intents before the record: an ADD is recorded before its intent is
// removed, so a container without an intent is already in the record (hazard 58).
func (in *intents) Rank() podsource.Rank { return podsource.RankADDs }

// Pods are the containers with an unfinished request. Each ADD of this server is among them
// until it is recorded. So they are all ADDs in flight of the served networks, and of no others,
// once no ADD of a server before this one can be in flight.
func (in *intents) Pods(context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "intents", Supplementary: true}
	if time.Since(in.opened) > checkpoint.DefaultLag {
		a.SeesADDs = in.networks
	}
	for _, r := range in.all() {
		a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{r.ContainerID}, Origin: in.path})
	}
	return a, nil
}

// recordADD records a complete ADD.
func (s *server) recordADD(r *request, result types.Result) error {
	current, err := types100.NewResultFromResult(result)
	if err != nil {
		return fmt.Errorf("reading the delegate's result: %w", err)
	}
	e := checkpoint.Entry{Key: r.key(), NetNS: checkpoint.NetNS{Path: r.Netns}}
	for _, ip := range current.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP) // Add refuses an invalid one
		e.IPs = append(e.IPs, addr.Unmap())
	}
	for arg := range strings.SplitSeq(r.Args, ";") {
		if value, ok := strings.CutPrefix(arg, "K8S_POD_NAMESPACE="); ok {
			e.Pod.Namespace = value
		} else if value, ok := strings.CutPrefix(arg, "K8S_POD_NAME="); ok {
			e.Pod.Name = value
		}
	}
	return s.record.Add(e)
}

// backfill records the attachments that another server made, or a version of this one
// without a record: those of the source's containers that have a reservation. What an ADD in
// flight reserves, or one whose container the source does not list yet, is in the record's
// gap: it does not speak of that, so it is kept (hazards 52 and 93). Without a source all that is
// not recorded is kept, until a DEL, a GC, a boot, or an answer of a source.
func (s *server) backfill(ctx context.Context) error {
	if s.source == nil {
		return s.record.Backfill(ctx, nil, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var list hostlocal.Listing
	source := podsource.AnswerFunc(func(ctx context.Context) (a podsource.Answer, err error) {
		list, err = s.store.List(ctx) // not before the call of Backfill, which takes care of a DEL that ends meanwhile
		for _, r := range list.Reservations {
			err = cmp.Or(err, r.Err) // it may be anybody's
		}
		if err == nil {
			a, err = s.source.Pods(ctx)
		}
		return a, err
	})
	return s.record.Backfill(ctx, source, func(p podsource.Pod) ([]checkpoint.Entry, error) {
		ids, of := slices.Clone(p.ContainerIDs), make(map[checkpoint.Key]checkpoint.Entry)
		for _, r := range list.Reservations {
			if slices.Contains(p.IPs, r.IP) {
				ids = append(ids, r.ContainerID)
			}
		}
		for _, r := range list.Reservations {
			// Before v0.8 host-local did not write the interface.
			k := checkpoint.Key{Network: r.Network, ContainerID: r.ContainerID, IfName: cmp.Or(r.IfName, "eth0")}
			if k.ContainerID != "" && slices.Contains(ids, k.ContainerID) && slices.Contains(s.networks, k.Network) {
				of[k] = checkpoint.Entry{Key: k, Pod: p.NamespacedName, UID: p.UID, IPs: append(of[k].IPs, r.IP)}
			}
		}
		return slices.Collect(maps.Values(of)), nil
	})
}

// backfillAgain is called after each pass. It closes the gap of the record once the source
// lists all that another server attached.
func (s *server) backfillAgain(gc.Report, error) {
	if len(s.sources) == 0 || time.Since(s.intents.opened) < 2*checkpoint.DefaultLag {
		return
	}
	if err := s.backfill(context.Background()); err != nil && !errors.Is(err, fs.ErrExist) {
		s.log.Error(err, "Looking for attachments that are not recorded; the next pass tries again")
	}
}
