// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// A pod is a sandbox with the addresses that the runtime reports.
type pod struct {
	name, id string
	ips      []netip.Addr
}

func (p pod) String() string { return fmt.Sprintf("pod %q (%s) with %v", p.name, p.id, p.ips) }

// namespace is the namespace of all pods except those in the node's network, which are in
// kube-system.
const namespace = "test"

// sandboxConfig returns the configuration of a pod's sandbox, like that of kubelet. Without DNS
// servers the sandbox would get the machine's resolv.conf.
func sandboxConfig(name string, mode runtimeapi.NamespaceMode) *runtimeapi.PodSandboxConfig {
	of := namespace
	if mode == runtimeapi.NamespaceMode_NODE {
		of = "kube-system"
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata:  &runtimeapi.PodSandboxMetadata{Name: name, Namespace: of, Uid: "uid-" + name},
		DnsConfig: &runtimeapi.DNSConfig{Servers: []string{"127.0.0.1"}},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/" + os.Getenv(cgroupEnv),
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: mode},
			},
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

func (n *node) runSome(name string, count int) []pod {
	n.t.Helper()
	var pods []pod
	for i := range count {
		pods = append(pods, n.run(fmt.Sprintf("%s-%d", name, i)))
	}
	return pods
}

// runAgent runs a pod in the node's network, like an agent. It holds no address, and the
// runtime's list is then not empty (R9).
func (n *node) runAgent() {
	n.t.Helper()
	_, err := n.cri.RunPodSandbox(n.t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: sandboxConfig("agent", runtimeapi.NamespaceMode_NODE),
	})
	n.must(err)
}

// addresses returns the addresses that the runtime reports for a sandbox. There may be none if
// it is not ready.
func (n *node) addresses(ctx context.Context, id string) ([]netip.Addr, error) {
	answer, err := n.cri.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	network := answer.GetStatus().GetNetwork()
	texts := []string{network.GetIp()}
	for _, more := range network.GetAdditionalIps() {
		texts = append(texts, more.GetIp())
	}
	for _, text := range texts {
		if text == "" {
			continue
		}
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		out = append(out, ip)
	}
	return out, nil
}

func (n *node) tryStop(ctx context.Context, id string) error {
	_, err := n.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

func (n *node) tryRemove(ctx context.Context, id string) error {
	_, err := n.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// remove stops and removes a pod.
func (n *node) remove(id string) {
	n.t.Helper()
	n.must(n.tryStop(n.t.Context(), id))
	n.must(n.tryRemove(n.t.Context(), id))
}

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

// reservations returns the owner of each reserved address in a network, and "" for an empty
// file.
func (n *node) reservations(network string) map[netip.Addr]string {
	n.t.Helper()
	all, err := hostlocal.New("").List(context.WithoutCancel(n.t.Context()))
	n.must(err)
	out := make(map[netip.Addr]string)
	for _, r := range all {
		if r.Network == network {
			out[r.IP] = r.ContainerID
		}
	}
	return out
}

// heldBy returns the addresses that are reserved for one of these containers.
func (n *node) heldBy(network string, ids ...string) []netip.Addr {
	n.t.Helper()
	var out []netip.Addr
	for ip, owner := range n.reservations(network) {
		if slices.Contains(ids, owner) {
			out = append(out, ip)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// age makes all reservations of a network an hour old, so that none is kept for its age (R5).
func (n *node) age(network string) {
	n.t.Helper()
	var all []netip.Addr
	for ip := range n.reservations(network) {
		all = append(all, ip)
	}
	n.must(stamp(network, time.Hour, all...))
}

// stampRecords sets the age of all entries of libcni's cache, and of Multus' one.
func stampRecords(age time.Duration) error {
	records, err := filepath.Glob(cnicache.DefaultDir + "/*")
	more, moreErr := filepath.Glob(multusResults + "/*")
	records, err = append(records, more...), errors.Join(err, moreErr)
	then := time.Now().Add(-age)
	for _, file := range records {
		err = errors.Join(err, os.Chtimes(file, then, then))
	}
	return err
}

// stamp sets the age of reservations.
func stamp(network string, age time.Duration, ips ...netip.Addr) error {
	then := time.Now().Add(-age)
	for _, ip := range ips {
		if err := os.Chtimes(reservationFile(network, ip), then, then); err != nil {
			return err
		}
	}
	return nil
}
