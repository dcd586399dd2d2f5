// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A pod is a sandbox with the addresses that the runtime reports.
type pod struct {
	name, id string
	ips      []netip.Addr
}

func (p pod) String() string { return fmt.Sprintf("pod %q (%s) with %v", p.name, p.id, p.ips) }

func addressesOf(pods []pod) (ips []netip.Addr) {
	for _, p := range pods {
		ips = append(ips, p.ips...)
	}
	return ips
}

// namespace is the namespace of all pods except those in the node's network.
const namespace = "test"

// sandboxConfig returns the configuration of a pod's sandbox, like that of kubelet. Without DNS servers the sandbox
// would get the machine's resolv.conf.
func sandboxConfig(name string, mode runtimeapi.NamespaceMode) *runtimeapi.PodSandboxConfig {
	of := namespace
	if mode == runtimeapi.NamespaceMode_NODE {
		of = "kube-system"
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata:  &runtimeapi.PodSandboxMetadata{Name: name, Namespace: of, Uid: "uid-" + name},
		DnsConfig: &runtimeapi.DNSConfig{Servers: []string{"127.0.0.1"}},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    "/" + os.Getenv(cgroupEnv),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Network: mode}},
		},
	}
}

// tryRun runs a pod, as kubelet does. It may fail.
func (n *node) tryRun(ctx context.Context, name string) (pod, error) {
	answer, err := n.cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{
		Config: sandboxConfig(name, runtimeapi.NamespaceMode_POD), RuntimeHandler: handlerOf(name),
	})
	if err != nil {
		return pod{}, err
	}
	p := pod{name: name, id: answer.GetPodSandboxId()}
	p.ips, err = n.addresses(ctx, p.id)
	return p, err
}

func (n *node) run(name string) pod {
	n.t.Helper()
	p, err := n.tryRun(n.t.Context(), name)
	n.must(err)
	if len(p.ips) != 2 {
		n.t.Fatalf("pod %s has the addresses %v, want dual stack", name, p.ips)
	}
	return p
}

func (n *node) runSome(name string, count int) (pods []pod) {
	n.t.Helper()
	for i := range count {
		pods = append(pods, n.run(fmt.Sprintf("%s-%d", name, i)))
	}
	return pods
}

// runAgent runs a pod in the node's network, like an agent. It holds no address, and the runtime's list is then not
// empty (R9).
func (n *node) runAgent() {
	n.t.Helper()
	_, err := n.cri.RunPodSandbox(n.t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: sandboxConfig("agent", runtimeapi.NamespaceMode_NODE),
	})
	n.must(err)
}

// addresses returns the addresses that the runtime reports for a sandbox. There may be none if it is not ready.
func (n *node) addresses(ctx context.Context, id string) (ips []netip.Addr, err error) {
	answer, err := n.cri.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	network := answer.GetStatus().GetNetwork()
	texts := []string{network.GetIp()}
	for _, more := range network.GetAdditionalIps() {
		texts = append(texts, more.GetIp())
	}
	for _, text := range texts {
		if text == "" || err != nil {
			continue
		}
		var ip netip.Addr
		ip, err = netip.ParseAddr(text)
		ips = append(ips, ip)
	}
	return ips, err
}

func (n *node) tryStop(ctx context.Context, id string) error {
	_, err := n.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

// tryRemove stops and removes a pod. It may fail.
func (n *node) tryRemove(ctx context.Context, id string) error {
	err := n.tryStop(ctx, id)
	if err == nil {
		_, err = n.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	}
	return err
}

func (n *node) remove(id string) {
	n.t.Helper()
	n.must(n.tryRemove(n.t.Context(), id))
}

const notReady = "SANDBOX_NOTREADY"

// sandboxes returns the state of each sandbox that the runtime lists.
func (n *node) sandboxes() map[string]string {
	n.t.Helper()
	answer, err := n.cri.ListPodSandbox(n.t.Context(), &runtimeapi.ListPodSandboxRequest{})
	n.must(err)
	out := make(map[string]string)
	for _, s := range answer.GetItems() {
		out[s.GetId()] = s.GetState().String()
	}
	return out
}

func (n *node) wantState(id, want, reason string) {
	n.t.Helper()
	if got := n.sandboxes()[id]; got != want {
		n.t.Fatalf("sandbox %s is in state %q, want %q: %s", id, got, want, reason)
	}
}

// awaitNetwork waits until the runtime has loaded the network's configuration.
func (n *node) awaitNetwork(name string) {
	n.t.Helper()
	n.await("containerd to load the network "+name, func(ctx context.Context) error {
		answer, err := n.cri.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
		if err == nil && !strings.Contains(answer.GetInfo()["cniconfig"], fmt.Sprintf("%q", name)) {
			err = fmt.Errorf("it has %s", answer.GetInfo()["cniconfig"])
		}
		return err
	})
}

// order tells the plugin gate what to do in a command for a pod: "fail", "hold" or "sleep 20s". The command
// "chained-ADD" is for the second plugin of a chain, "lease-ADD" for its IPAM plugin. START is for runclite, with a
// duration, which [node.untell] ends.
func (n *node) order(command, pod, what string) error {
	return os.WriteFile(n.path("control/"+command+"."+pod), []byte(what), 0o600)
}

func (n *node) tell(command, pod, what string) {
	n.t.Helper()
	n.must(n.order(command, pod, what))
}

// untell undoes tell.
func (n *node) untell(command, pod string) {
	n.t.Helper()
	n.must(os.Remove(n.path("control/" + command + "." + pod)))
}

const toldToFail = "gate: told to fail ADD"

// fail runs a pod whose ADD fails after its IPAM, and whose DEL fails, too.
func (n *node) fail(name string) {
	n.t.Helper()
	n.tellToFail("", name)
	if p, err := n.tryRun(n.t.Context(), name); err == nil || !strings.Contains(err.Error(), toldToFail) {
		n.t.Fatalf("pod %s did not fail in the plugin gate: %+v, %v", name, p, err)
	}
	n.untellToFail("", name)
}

// tellToFail tells the plugin gate to fail in ADD and in DEL.
func (n *node) tellToFail(prefix, pod string) {
	n.t.Helper()
	n.must(errors.Join(n.order(prefix+"ADD", pod, "fail"), n.order(prefix+"DEL", pod, "fail")))
}

func (n *node) untellToFail(prefix, pod string) {
	n.t.Helper()
	n.untell(prefix+"ADD", pod)
	n.untell(prefix+"DEL", pod)
}

// leak removes pods while their network has another name, so that no DEL finds their addresses, and makes all
// reservations old.
func (n *node) leak(pods ...pod) {
	n.t.Helper()
	network := n.network
	n.configure("elsewhere")
	n.awaitNetwork("elsewhere")
	for _, p := range pods {
		n.remove(p.id)
	}
	n.configure(network)
	n.awaitNetwork(network)
	n.age()
}

// A call is a call of RunPodSandbox in another goroutine.
type call struct {
	done   chan struct{} // closed when it has returned
	cancel func()        // ends the call, like its client's deadline
	pod    pod
	err    error
}

// runHeld starts to run a pod, and returns when it is held in a command of [node.order], in ADD with its addresses. The
// command does not return until resume is called.
func (n *node) runHeld(command, name string) *call {
	n.t.Helper()
	for _, pipe := range []string{"arrived", "go"} {
		if err := syscall.Mkfifo(n.path("control/"+pipe), 0o600); err != nil && !errors.Is(err, os.ErrExist) {
			n.must(fmt.Errorf("making the pipe %s: %w", pipe, err))
		}
	}
	n.tell(command, name, "hold")
	c := n.begin(name)
	arrived := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(n.path("control/arrived")) // returns when gate has closed it
		arrived <- err
	}()
	select {
	case err := <-arrived:
		n.must(err)
	case <-c.done:
		n.t.Fatalf("pod %s was not held in its ADD: %v", name, c.err)
	}
	return c
}

// begin starts to run a pod.
func (n *node) begin(name string) *call {
	ctx, cancel := context.WithCancel(n.t.Context())
	c := &call{done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(c.done)
		defer cancel()
		c.pod, c.err = n.tryRun(ctx, name)
	}()
	return c
}

// resume lets the ADD that is held return.
func (n *node) resume() {
	n.t.Helper()
	n.must(os.WriteFile(n.path("control/go"), nil, 0)) // waits for gate to open it
}

// wait waits until the pod runs.
func (n *node) wait(c *call) pod {
	n.t.Helper()
	<-c.done
	n.must(c.err)
	return c.pod
}

// otherContainers returns the owners of reservations that are none of these pods.
func otherContainers(reservations map[netip.Addr]string, pods ...pod) (ids []string) {
	for _, id := range reservations {
		if !slices.Contains(ids, id) && !slices.ContainsFunc(pods, func(p pod) bool { return p.id == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}
