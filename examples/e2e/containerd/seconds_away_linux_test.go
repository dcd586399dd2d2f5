// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// stopAndRemove stops and removes a sandbox, also if containerd is killed meanwhile.
// Reservations that are left have leaked.
func (s *seconds) stopAndRemove(alive context.Context, id string) {
	for alive.Err() == nil {
		epoch := s.awaitContainerd(alive)
		err := s.n.tryStop(alive, id)
		if err == nil {
			err = s.n.tryRemove(alive, id)
		}
		if err == nil {
			break
		}
		if s.epoch.Load() == epoch && alive.Err() == nil {
			s.wrong(trouble, "removing %s: %v", id, err)
			return
		}
	}
	all, err := hostlocal.New("").List(alive)
	if err != nil && alive.Err() == nil {
		s.wrong(trouble, "%v", err)
	}
	if slices.ContainsFunc(all, func(r hostlocal.Reservation) bool { return r.ContainerID == id }) {
		s.count("pods that leaked by a kill")
		s.awaitPlugins(alive, id)
		s.leaked(id)
	}
}

// abandon removes the sandboxes of a pod whose start failed.
func (s *seconds) abandon(alive context.Context, name string) {
	for alive.Err() == nil {
		epoch := s.awaitContainerd(alive)
		answer, err := s.n.cri.ListPodSandbox(alive, &runtimeapi.ListPodSandboxRequest{})
		if err == nil {
			for _, sandbox := range answer.GetItems() {
				if sandbox.GetMetadata().GetName() == name {
					s.count("failed pods that were listed")
					s.stopAndRemove(alive, sandbox.GetId())
				}
			}
			return
		}
		if s.epoch.Load() == epoch && alive.Err() == nil {
			s.wrong(trouble, "listing the sandboxes of pod %s: %v", name, err)
			return
		}
	}
}

// awaitContainerd waits until containerd runs, and returns the epoch.
func (s *seconds) awaitContainerd(alive context.Context) int64 {
	for tick := time.Tick(20 * time.Millisecond); ; {
		if epoch := s.epoch.Load(); epoch%2 == 0 || alive.Err() != nil {
			return epoch
		}
		<-tick
	}
}

// awaitPlugins waits until no plugin runs for a container. A plugin runs on when containerd is
// killed.
func (s *seconds) awaitPlugins(alive context.Context, id string) {
	for tick := time.Tick(20 * time.Millisecond); alive.Err() == nil; <-tick {
		pids, err := others()
		if err != nil {
			s.wrong(trouble, "%v", err)
			return
		}
		if !slices.ContainsFunc(pids, func(pid int) bool {
			environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // it may have ended
			return strings.Contains(string(environ), "CNI_CONTAINERID="+id)
		}) {
			return
		}
	}
}
