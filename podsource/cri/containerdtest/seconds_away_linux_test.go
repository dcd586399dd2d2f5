// SPDX-License-Identifier: Apache-2.0

package containerdtest

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

// takeAway stops and removes a sandbox, also where containerd is killed meanwhile.
// What is reserved for it afterwards has leaked.
func (s *seconds) takeAway(alive context.Context, id string) {
	for alive.Err() == nil {
		power := s.awaitPower(alive)
		err := s.n.tryStop(alive, id)
		if err == nil {
			err = s.n.tryRemove(alive, id)
		}
		if err == nil {
			break
		}
		if s.power.Load() == power && alive.Err() == nil {
			s.wrong(trouble, "taking %s away: %v", id, err)
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

// abandon takes away what the runtime lists of a pod whose start failed.
func (s *seconds) abandon(alive context.Context, name string) {
	for alive.Err() == nil {
		power := s.awaitPower(alive)
		answer, err := s.n.cri.ListPodSandbox(alive, &runtimeapi.ListPodSandboxRequest{})
		if err == nil {
			for _, sandbox := range answer.GetItems() {
				if sandbox.GetMetadata().GetName() == name {
					s.count("failed pods that were listed")
					s.takeAway(alive, sandbox.GetId())
				}
			}
			return
		}
		if s.power.Load() == power && alive.Err() == nil {
			s.wrong(trouble, "listing what is left of pod %s: %v", name, err)
			return
		}
	}
}

// awaitPower waits until containerd runs.
func (s *seconds) awaitPower(alive context.Context) int64 {
	for tick := time.Tick(20 * time.Millisecond); ; {
		if power := s.power.Load(); power%2 == 0 || alive.Err() != nil {
			return power
		}
		<-tick
	}
}

// awaitPlugins waits until no plugin works for a container any more: one goes on
// when containerd is killed.
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
