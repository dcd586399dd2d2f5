// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cri"
)

// gvisorPods is the prefix of the names of pods that run in gVisor. gVisor moves the addresses
// from the pod's network namespace to its own network stack, so the kernel does not show them
// (hazard 59).
const gvisorPods = "gvisor"

// withGVisor is the option of a node with a runtime handler for gVisor.
func withGVisor(n *node) { n.gvisor = true }

// runscLite returns the path of runclite as runsclite, which runs gVisor's runsc without limits.
func (n *node) runscLite() string { return n.path("runsclite") }

// ociRuntime returns the path of the OCI runtime for a container of that name.
func (n *node) ociRuntime(name string) string {
	if handlerOf(name) != "" {
		return n.runscLite()
	}
	return runc()
}

// handlerOf returns the runtime handler of a pod, as in a RuntimeClass.
func handlerOf(pod string) string {
	if strings.HasPrefix(pod, gvisorPods) {
		return "runsc"
	}
	return ""
}

// configGVisor returns the part of containerd's configuration for gVisor. As with Docker the
// shim is runc's: gVisor's own shim lowers its out-of-memory score, for which it needs
// CAP_SYS_RESOURCE on the machine.
func (n *node) configGVisor() string {
	if !n.gvisor {
		return ""
	}
	return fmt.Sprintf(`
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runsc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runsc.options]
      SystemdCgroup = false
      BinaryName = %q
`, n.runscLite())
}

// withoutGVisorPods is a runtime that has lost its records of pods in gVisor.
type withoutGVisorPods struct{ *cri.Source }

func (f withoutGVisorPods) Pods(ctx context.Context) (podsource.Answer, error) {
	a, err := f.Source.Pods(ctx)
	a.Pods = slices.DeleteFunc(a.Pods, func(p podsource.Pod) bool { return strings.HasPrefix(p.Name, gvisorPods) })
	return a, err
}

// gvisorPod runs a pod in gVisor for several passes at the minimum age. The runtime never lists
// it.
func (s *seconds) gvisorPod(_, alive context.Context, _ *sync.WaitGroup, name string) {
	if rand.N(2) == 0 {
		s.order(name, "ADD", "sleep 4s")
	}
	p, ok := s.start(alive, name)
	if !ok {
		return
	}
	s.count("gVisor pods")
	s.hold(alive, p, 2*secondsAge+rand.N(secondsAge))
	s.end(alive, p)
}

// shownByCacheAlone reports whether in one of the answers only the cache names the owner of an
// entry, or has its address.
func shownByCacheAlone(answers [][]podsource.Answer, e gc.Entry) bool {
	return slices.ContainsFunc(answers, func(members []podsource.Answer) bool {
		var by []string
		for _, a := range members {
			if slices.ContainsFunc(a.Pods, func(p podsource.Pod) bool {
				return slices.Contains(p.ContainerIDs, e.ContainerID) || slices.Contains(p.IPs, e.IP)
			}) {
				by = append(by, a.Source)
			}
		}
		return slices.Equal(by, []string{"cnicache"})
	})
}
