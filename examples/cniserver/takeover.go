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

// A takeOver is the time after a first record that was written from --existing. When it
// was written, ADDs of the previous server may have been in flight, and have reserved
// later (hazard 52), but within gc.DefaultMinAge, the longest time that a runtime gives an
// ADD.
//
// During that time the server does not assert that no ADD is in flight, so young
// reservations are kept. At its end the attachments of those ADDs are recorded. Its state is a
// file that exists until then, and whose modification time is that of the beginning.
type takeOver struct {
	s    *server
	file string
}

// begin must be called before the reservations are listed for the first record.
func (t takeOver) begin() error {
	now := time.Now()
	f, err := os.OpenFile(t.file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(os.Chtimes(t.file, now, now), f.Sync(), f.Close(), syncDir(t.s.stateDir))
}

// began returns when it began, or zero if there is none.
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

// end ends a take-over whose time is over, and reports whether there is none any more:
// only then is each ADD one of this server. No request may run meanwhile.
func (t takeOver) end(ctx context.Context) (over bool, err error) {
	began, err := t.began()
	if began.IsZero() { // none, or an error
		return err == nil, err
	}
	if time.Since(began) < gc.DefaultMinAge {
		return false, nil
	}
	list, err := t.s.store.List(ctx)
	if err != nil {
		return false, err
	}
	intents, err := t.s.intents.all()
	if err != nil {
		return false, err
	}
	all, err := t.s.attachmentsOf(list.Reservations)
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

// Rank orders it before the record.
func (t takeOver) Rank() podsource.Rank { return podsource.RankADDs }

// Pods ends a take-over whose time is over. It returns no pod: those that it records are
// in the answer of the record, which is asked later.
func (t takeOver) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "take-over", Supplementary: true}
	began, err := t.began()
	if began.IsZero() || time.Since(began) < gc.DefaultMinAge {
		return a, err
	}
	t.s.gcLock.Lock()
	defer t.s.gcLock.Unlock()
	_, err = t.end(ctx)
	return a, err
}

// recordExisting writes the first record. It has the attachments with a reservation whose
// pods the source lists. It also has attachments that may be too young for the source, since
// their addresses would be released once they are older (hazard 52): a DEL or a GC removes
// them.
func (s *server) recordExisting(ctx context.Context, existing podsource.Source) error {
	list, err := s.store.List(ctx)
	if err != nil {
		return err
	}
	all, err := s.attachmentsOf(list.Reservations)
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

// withContainers adds to the pods the containers that have their addresses. A pod that is
// starting, or may have more addresses than its source knows, may have any address that was
// reserved since its start (R4). If there is none, there is nothing to record, as for a pod
// in the host network: an error would be a deadlock, since the pod waits for this server.
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
			started = time.Time{} // unknown
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

// attachmentsOf returns the attachments to the served networks that have the reservations,
// each with the time of its youngest one (R5). A reservation that can't be read is an error,
// since its attachment is unknown.
func (s *server) attachmentsOf(rs []hostlocal.Reservation) (all []checkpoint.Entry, err error) {
	for _, res := range rs {
		if !slices.Contains(s.networks, res.Network) {
			continue
		}
		if res.Err != nil {
			return nil, fmt.Errorf("looking for unrecorded attachments: %w", res.Err)
		}
		if res.ContainerID == "" {
			continue
		}
		k := checkpoint.Key{Network: res.Network, ContainerID: res.ContainerID, IfName: res.IfName}
		if k.IfName == "" {
			k.IfName = "eth0" // host-local before v0.8 did not write it
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
