// SPDX-License-Identifier: Apache-2.0

package containerdtest

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

// gvisorPods is how the names of pods begin that run in gVisor, where the node has
// it. gVisor takes the addresses out of the pod's network namespace and has them in
// a network stack of its own, so the kernel does not show them (hazard 59).
const gvisorPods = "gvisor"

// withGVisor is a node that has a handler for gVisor.
func withGVisor(n *node) { n.gvisor = true }

// runscLite is the path of gVisor's runsc, without limits.
func (n *node) runscLite() string { return n.path("runsclite") }

// ociRuntime is the path of what runs a container of that name.
func (n *node) ociRuntime(name string) string {
	if handlerOf(name) != "" {
		return n.runscLite()
	}
	return runc()
}

// handlerOf is the runtime handler of a pod, as a RuntimeClass names it.
func handlerOf(pod string) string {
	if strings.HasPrefix(pod, gvisorPods) {
		return "runsc"
	}
	return ""
}

// configGVisor is that part of containerd's configuration. As with Docker the shim
// is runc's: gVisor's own wants to be spared by the out-of-memory killer, which
// takes CAP_SYS_RESOURCE over the machine.
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

// A forgetful runtime has lost its records of pods in gVisor.
type forgetful struct{ *cri.Source }

func (f forgetful) Pods(ctx context.Context) (podsource.Answer, error) {
	a, err := f.Source.Pods(ctx)
	a.Pods = slices.DeleteFunc(a.Pods, func(p podsource.Pod) bool { return strings.HasPrefix(p.Name, gvisorPods) })
	return a, err
}

// guest is the life of a pod in gVisor, which outlasts several passes at the minimum
// age. The runtime never lists it.
func (s *seconds) guest(_, alive context.Context, _ *sync.WaitGroup, name string) {
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

// shownByCacheAlone reports whether in some look nothing but the cache names the
// owner of an entry, or has its address.
func shownByCacheAlone(looks [][]podsource.Answer, e gc.Entry) bool {
	return slices.ContainsFunc(looks, func(look []podsource.Answer) bool {
		var by []string
		for _, a := range look {
			if slices.ContainsFunc(a.Pods, func(p podsource.Pod) bool {
				return slices.Contains(p.ContainerIDs, e.ContainerID) || slices.Contains(p.IPs, e.IP)
			}) {
				by = append(by, a.Source)
			}
		}
		return slices.Equal(by, []string{"cnicache"})
	})
}
