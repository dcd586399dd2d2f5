// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Nothing leaks. Ten pods stay, others start and end, and their reservations are made old as
// soon as the runtime lists them. They are kept only because the pods are live.
func TestFiftyPassesWhilePodsComeAndGo(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		pods := n.runSome("web", 10)
		n.age(n.network)
		l := newLedger(t, n.network)
		l.took(pods...)

		ctx, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		defer working.Wait()
		defer cancel()
		passed := make(chan struct{})
		for w := range 3 {
			working.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					if err := n.runBriefly(t.Context(), l, fmt.Sprintf("short-%d-%d", w, i), passed, ctx.Done()); err != nil {
						l.wrong(trouble, "%v", err)
						return
					}
				}
			})
		}
		for passes := 0; passes < 50 || l.counted("short-lived pods") < 20 && !t.Failed(); passes++ {
			p := n.release(n.network)
			same(t, "released", "nothing has leaked", nil, p.released)
			for _, web := range pods {
				l.holds(web)
				for _, ip := range web.ips {
					same(t, ip.String(), "pod "+web.name+" is live", "in-use", p.verdicts[ip])
				}
			}
			l.count("passes")
			select {
			case passed <- struct{}{}:
			default:
			}
		}
		cancel()
		working.Wait()
		t.Log(l)
		same(t, "reservations", "the short-lived pods are gone", holding(pods...), n.reservations(n.network))
	})
}

// runBriefly runs a pod, makes its reservations old, waits for the end of a pass, and removes
// the pod.
func (n *node) runBriefly(ctx context.Context, l *ledger, name string, passed, over <-chan struct{}) error {
	p, err := n.tryRun(ctx, name)
	if err != nil {
		return fmt.Errorf("running pod %s: %w", name, err)
	}
	l.took(p)
	l.count("short-lived pods")
	if err := n.awaitListed(ctx, p.id); err != nil {
		return err
	}
	if err := stamp(n.network, time.Hour, p.ips...); err != nil {
		return fmt.Errorf("the reservations of live pod %s: %w", name, err)
	}
	select {
	case <-passed:
	case <-over:
	}
	l.holds(p)
	l.leave(p)
	if err := n.tryStop(ctx, p.id); err != nil {
		return fmt.Errorf("stopping pod %s: %w", name, err)
	}
	return n.tryRemove(ctx, p.id)
}

// awaitListed waits until the runtime lists a sandbox.
func (n *node) awaitListed(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for tick := time.Tick(5 * time.Millisecond); ; {
		answer, err := n.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: id}})
		if err != nil || len(answer.GetItems()) == 1 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sandbox %s is not listed: %w", id, ctx.Err())
		case <-tick:
		}
	}
}

// ageOf returns the age of a pod's oldest reservation.
func ageOf(network string, ips []netip.Addr) (time.Duration, error) {
	var oldest time.Duration
	for _, ip := range ips {
		info, err := os.Stat(reservationFile(network, ip))
		if err != nil {
			return 0, err
		}
		oldest = max(oldest, time.Since(info.ModTime()))
	}
	return oldest, nil
}
