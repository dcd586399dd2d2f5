// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// A takeOver is the time after a first record that --existing told of. ADDs of
// whoever served the networks before may have been in flight when that record was
// written, and reserve and end later (hazard 52). No longer than gc.DefaultMinAge
// later, which is the longest that a runtime gives an ADD.
//
// During that time nothing asserts that no ADD is in flight, so what is young is
// kept. At its end what those ADDs reserved is recorded. All that is known of it is
// one file, that is there until then, and was modified when it began.
type takeOver struct {
	s    *server
	file string
}

// begin comes before the reservations are listed for the first record.
func (t takeOver) begin() error {
	now := time.Now()
	f, err := os.OpenFile(t.file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(os.Chtimes(t.file, now, now), f.Sync(), f.Close(), syncDir(t.s.stateDir))
}

// began returns when it began, or zero when there is none.
func (t takeOver) began() (time.Time, error) {
	info, err := os.Stat(t.file)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// end ends a take-over whose time is up, and reports whether none is left: only
// then is every ADD one of this server's. No request may be under way.
func (t takeOver) end(ctx context.Context) (over bool, err error) {
	began, err := t.began()
	if began.IsZero() { // there is none, or an error
		return err == nil, err
	}
	if time.Since(began) < gc.DefaultMinAge {
		return false, nil
	}
	rs, err := t.s.store.List(ctx)
	if err != nil {
		return false, err
	}
	intents, err := t.s.intents.all()
	if err != nil {
		return false, err
	}
	all, err := t.s.attachmentsOf(rs)
	if err != nil {
		return false, err
	}
	for _, e := range all {
		_, recorded := t.s.record.Get(e.Key)
		intended := slices.ContainsFunc(intents, func(i *intent) bool { return i.key(i.Network) == e.Key })
		if recorded || intended || e.Time.Before(began.Add(-gc.DefaultMinAge)) {
			continue
		}
		if err := t.s.record.Add(e); err != nil {
			return false, err
		}
		t.s.log.Info("Recorded an attachment that another server made", "network", e.Network, "containerID", e.ContainerID, "ifName", e.IfName)
	}
	err = os.Remove(t.file)
	if err == nil {
		err = syncDir(t.s.stateDir)
	}
	return err == nil, err
}

// Rank has it asked before the record.
func (t takeOver) Rank() podsource.Rank { return podsource.RankADDs }

// Pods ends a take-over whose time is up. It names nobody: the record does, which
// is asked after it.
func (t takeOver) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "take-over", Supplementary: true}
	began, err := t.began()
	if began.IsZero() || time.Since(began) < gc.DefaultMinAge {
		return a, err
	}
	t.s.single.Lock()
	defer t.s.single.Unlock()
	_, err = t.end(ctx)
	return a, err
}

// recordExisting writes the first record, of the attachments that exist: those
// of which a source sees the pod and host-local has the reservation. What a source
// does not see because it is too young is recorded, too, or else its address would
// be released once it is older (hazard 52): a DEL or a GC forgets it.
func (s *server) recordExisting(ctx context.Context, existing podsource.Source) error {
	rs, err := s.store.List(ctx)
	if err != nil {
		return err
	}
	all, err := s.attachmentsOf(rs)
	if err != nil {
		return err
	}
	young := podsource.Answer{Source: "young reservations", Supplementary: true}
	for _, e := range all {
		if time.Since(e.Time) < gc.DefaultMinAge {
			young.Pods = append(young.Pods, podsource.Pod{ContainerIDs: []string{e.ContainerID}})
		}
	}
	known := podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) {
		answer, err := existing.Pods(ctx)
		parts := answer.Members()
		for i := range parts {
			parts[i].Pods = withContainers(parts[i].Pods, all)
		}
		return podsource.Answer{Parts: append(parts, young)}, err
	})
	return s.record.Backfill(ctx, known, func(p podsource.Pod) (of []checkpoint.Entry, err error) {
		for _, e := range all {
			if slices.Contains(p.ContainerIDs, e.ContainerID) {
				e.Pod, e.UID = p.NamespacedName, p.UID
				of = append(of, e)
			}
		}
		return of, nil
	})
}

// withContainers returns pods with the containers whose addresses they have. One that
// is starting, or may have more addresses than its source knows, may have any that was
// reserved since (R4); where there is none it has nothing to record, like one in the
// node's network. No pod could start that waits for this server, if it waited for it.
func withContainers(pods []podsource.Pod, all []checkpoint.Entry) []podsource.Pod {
	pods = slices.Clone(pods)
	for i := range pods {
		p := &pods[i]
		if p.HostNetwork {
			continue
		}
		ids := slices.Clone(p.ContainerIDs)
		starting := len(p.ContainerIDs) == 0 && len(p.IPs) == 0 && !p.HasFinished()
		started := p.StartedAt
		if started.After(time.Now()) {
			started = time.Time{} // nobody knows
		}
		for _, e := range all {
			has := slices.ContainsFunc(e.IPs, func(ip netip.Addr) bool { return slices.Contains(p.IPs, ip) })
			if has || (starting || p.MoreIPs) && !e.Time.Before(started) {
				ids = append(ids, e.ContainerID)
			}
		}
		p.ContainerIDs = ids
		p.HostNetwork = starting && len(ids) == 0
	}
	return pods
}

// attachmentsOf are those that reservations tell of, in the networks that are
// served. Each has the time of its youngest one (R5). One that can't be read might
// tell of another.
func (s *server) attachmentsOf(rs []hostlocal.Reservation) (all []checkpoint.Entry, err error) {
	for _, res := range rs {
		if !slices.Contains(s.networks, res.Network) {
			continue
		}
		if res.Err != nil {
			return nil, fmt.Errorf("looking for attachments that are not recorded: %w", res.Err)
		}
		if res.ContainerID == "" {
			continue
		}
		k := checkpoint.Key{Network: res.Network, ContainerID: res.ContainerID, IfName: res.IfName}
		if k.IfName == "" {
			k.IfName = "eth0" // host-local before v0.8 did not say
		}
		i := slices.IndexFunc(all, func(e checkpoint.Entry) bool { return e.Key == k })
		if i < 0 {
			i = len(all)
			all = append(all, checkpoint.Entry{Key: k, Time: res.ReservedAt})
		}
		all[i].IPs = append(all[i].IPs, res.IP)
		if res.ReservedAt.After(all[i].Time) {
			all[i].Time = res.ReservedAt
		}
	}
	return all, nil
}
