// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hostlocal-gc/hostlocal-gc/examples/ipam/internal/front"
)

// A result is that of the last shared pass over a network, for ADDs that waited for it and for the
// next pass. Times are those since the boot, which all processes share.
type result struct {
	BootID   string        `json:"bootID"`
	Passes   int           `json:"passes"` // number since the boot
	Begin    time.Duration `json:"begin"`
	End      time.Duration `json:"end"`
	EndedAt  time.Time     `json:"endedAt"` // by the wall clock, for people
	Released int           `json:"released"`
	Text     string        `json:"result"`
}

// passPause is the minimum time between the beginnings of a pass that released nothing and of the
// next one. On a node that stays full the runtime repeats its ADDs for ever: they cost one pass in
// that time, and share it.
const passPause = 2 * time.Second

// sharedPass makes a pass, or uses the result of another ADD's. A pass that released something after
// the failed try began justifies another try. A pass that began after it answers for this ADD, too.
// So concurrent ADDs that fail share one pass.
func (r *request) sharedPass(ctx context.Context, why failure, ip netip.Addr) (again bool, err error) {
	lock, err := lockPasses(ctx, r.conf)
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }() // this unlocks it
	last := readResult(lock)
	switch began := time.Duration(r.add.Began); {
	case last.Released > 0 && last.End >= began:
		return true, nil
	case last.End > 0 && last.Begin >= began:
		r.said = append(r.said, "another ADD's answer: "+last.Text)
		return false, nil
	}
	if last.Released == 0 && last.Begin > 0 && !pause(ctx, last.Begin+passPause-sinceBoot()) {
		return false, fmt.Errorf("waiting to search network %s for leaks once more: %w", r.conf.network, ctx.Err())
	}
	begin := sinceBoot()
	hurry()
	p, err := r.pass()
	if err != nil { // it would fail for all who wait
		p.text = r.explain(err)
	}
	now := result{last.BootID, last.Passes + 1, begin, sinceBoot(), time.Now(), p.released, p.text}
	_ = writeResult(lock, &now) // without it others make passes of their own
	if p.released > 0 {
		r.logf("%s, in %v", p.text, (now.End - now.Begin).Round(time.Millisecond))
		return true, nil
	}
	return err == nil && r.answer(&p, why, ip), err
}

// hurry gives all threads the highest priority, and host-local, which they start: all that wait for a pass wait
// for this process. Without CAP_SYS_NICE it has no effect.
func hurry() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, -20)
		}
	}
}

func sinceBoot() time.Duration { return time.Duration(front.SinceBoot()) }

// pause waits, and reports whether time is left.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// lockPasses waits for the lock for shared passes over a network, with the last one's result in its
// file, <data dir>/.<network>.gc. Without room for the file the lock is of this ADD alone. If it is
// removed meanwhile, those that wait for it share their passes, and those that come later theirs. It follows
// no link.
func lockPasses(ctx context.Context, conf *config) (*os.File, error) {
	path := filepath.Join(conf.dataDir, "."+conf.network+".gc")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) { // releases make room
		fd, memErr := unix.MemfdCreate("lock", unix.MFD_CLOEXEC)
		file, err = os.NewFile(uintptr(fd), path), memErr
	}
	if err != nil {
		return nil, fmt.Errorf("opening the lock under which network %s is searched for leaks: %w", conf.network, err)
	}
	locked := make(chan error, 1)
	go func() { locked <- syscall.Flock(int(file.Fd()), syscall.LOCK_EX) }()
	select {
	case err = <-locked:
	case <-ctx.Done(): // the waiting thread ends with this process, and does nothing under the lock
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("waiting for another ADD's pass over network %s: %w", conf.network, err)
	}
	return file, nil
}

// readResult returns the last result. It is empty, but for the ID of this boot, if it is of another boot, from
// the future, or torn because its writer was killed.
func readResult(lock *os.File) (last result) {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // after an error all boots seem to be one
	boot := strings.TrimSpace(string(text))
	err := json.NewDecoder(io.NewSectionReader(lock, 0, 64<<20)).Decode(&last)
	if err != nil || last.BootID != boot || last.Begin > last.End || last.End > sinceBoot() {
		return result{BootID: boot}
	}
	return last
}

// writeResult replaces the result.
func writeResult(lock *os.File, now *result) error {
	text, err := json.Marshal(now)
	if err = errors.Join(err, lock.Truncate(0)); err == nil {
		_, err = lock.WriteAt(append(text, '\n'), 0)
	}
	return err
}
