// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// pool4 and pool6 are typical ranges of a node.
var (
	pool4 = plugintest.Range{Subnet: "10.1.0.0/16"}
	pool6 = plugintest.Range{Subnet: "fd00:1::/64"}
)

// patience is how long a test waits for what a busy machine does late.
const patience = 5 * time.Minute

// numbers makes the names of nodes and namespaces unique.
var numbers atomic.Int64

// A node is a Node object with the boot ID of this machine, and a data directory of the real
// plugin.
type node struct {
	t               *testing.T
	name, namespace string
	client          *kubernetes.Clientset // with all permissions
	plugin          *plugintest.Plugin
}

func newNode(t *testing.T, ranges ...plugintest.Range) *node {
	t.Helper()
	if len(ranges) == 0 {
		ranges = []plugintest.Range{pool4}
	}
	number := numbers.Add(1)
	n := &node{
		t: t, name: fmt.Sprintf("node-%d", number), namespace: fmt.Sprintf("ns-%d", number),
		client: clientset(t, adminToken), plugin: plugintest.New(t, "podnet", ranges...),
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.namespace}}
	_, err := n.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	n.must(err)
	n.register(bootID(t))
	t.Cleanup(n.clear)
	return n
}

// clear deletes the Node and its pods.
func (n *node) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	now := int64(0)
	opts := metav1.DeleteOptions{GracePeriodSeconds: &now}
	n.must(n.client.CoreV1().Pods(n.namespace).DeleteCollection(ctx, opts, metav1.ListOptions{}))
	n.must(n.client.CoreV1().Nodes().DeleteCollection(ctx, opts, metav1.ListOptions{FieldSelector: "metadata.name=" + n.name}))
}

// register creates the Node object, as kubelet does.
func (n *node) register(bootID string) *corev1.Node {
	n.t.Helper()
	got, err := n.client.CoreV1().Nodes().Create(n.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{})
	n.must(err)
	got.Status.NodeInfo.BootID = bootID
	got.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	got, err = n.client.CoreV1().Nodes().UpdateStatus(n.t.Context(), got, metav1.UpdateOptions{})
	n.must(err)
	return got
}

// setStatus changes the Node's status, as kubelet or the node controller does.
func (n *node) setStatus(change func(*corev1.NodeStatus)) {
	n.t.Helper()
	got, err := n.client.CoreV1().Nodes().Get(n.t.Context(), n.name, metav1.GetOptions{})
	n.must(err)
	change(&got.Status)
	_, err = n.client.CoreV1().Nodes().UpdateStatus(n.t.Context(), got, metav1.UpdateOptions{})
	n.must(err)
}

// made returns s, and panics on an error.
func made[S any](s S, err error) S {
	if err != nil {
		panic(err)
	}
	return s
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func clientset(t *testing.T, token string) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(cluster.config(token))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func bootID(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// source returns a source of New with default options.
func (n *node) source() podsource.Source {
	return newSource(n.client.CoreV1(), n.name, kube.Options{})
}

// newSource returns a source of New that waits for a busy server.
func newSource(client kube.Client, nodeName string, opts kube.Options) podsource.Source {
	opts.Timeout = patience
	return made(kube.New(client, nodeName, opts))
}

// reserve makes the plugin reserve addresses for a container, and sets the age of the
// reservations.
func (n *node) reserve(container string, age time.Duration) []netip.Addr {
	n.t.Helper()
	return reserveIn(n.t, n.plugin, container, age)
}

// reserveIn is reserve for any network. The container ID has 64 hexadecimal digits.
func reserveIn(t *testing.T, p *plugintest.Plugin, container string, age time.Duration) []netip.Addr {
	t.Helper()
	ips, err := p.Add(t.Context(), fmt.Sprintf("%x", sha256.Sum256([]byte(container))), "eth0")
	if err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-age)
	for _, ip := range ips {
		if err := os.Chtimes(p.File(ip), then, then); err != nil {
			t.Fatal(err)
		}
	}
	return ips
}

// pass runs one pass over the node's network with the given source.
func (n *node) pass(source podsource.Source, opts gc.Options) (gc.Report, error) {
	n.t.Helper()
	opts.SourceTimeout = 2 * patience
	r, err := gc.New(hostlocal.New(n.plugin.DataDir), []string{n.plugin.Network}, source, opts)
	n.must(err)
	return r.Reconcile(n.t.Context())
}

// collect runs one pass with the API server as the source, which must succeed, and checks
// the verdicts.
func (n *node) collect(want map[string]gc.Verdict) gc.Report {
	n.t.Helper()
	report, err := n.pass(n.source(), gc.Options{})
	n.must(err)
	n.check(report, want)
	return report
}

// check checks the verdicts, and that the files agree with them.
func (n *node) check(report gc.Report, want map[string]gc.Verdict) {
	n.t.Helper()
	if diff := cmp.Diff(want, n.verdicts(report)); diff != "" {
		n.t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	for ip, verdict := range want {
		_, err := os.Lstat(n.plugin.File(netip.MustParseAddr(ip)))
		if gone := errors.Is(err, fs.ErrNotExist); gone != (verdict == gc.Released) {
			n.t.Errorf("the verdict on %s is %v, but for its file os.Lstat returned: %v", ip, verdict, err)
		}
	}
}

// refused runs one pass, which must fail and release nothing, and returns its error.
func (n *node) refused(source podsource.Source) error {
	n.t.Helper()
	before, err := os.ReadDir(n.plugin.Dir())
	n.must(err)
	report, err := n.pass(source, gc.Options{})
	if err == nil {
		n.t.Fatalf("the pass succeeded: %v", report.Counts())
	}
	after, dirErr := os.ReadDir(n.plugin.Dir())
	n.must(dirErr)
	if report.Counts()[gc.Released] != 0 || len(before) != len(after) {
		n.t.Errorf("something was released: %v, %d files before and %d after", report.Counts(), len(before), len(after))
	}
	return err
}

// verdicts returns the verdict on each address of the node's network.
func (n *node) verdicts(r gc.Report) map[string]gc.Verdict {
	m := make(map[string]gc.Verdict)
	for i := range r.Reservations {
		if e := &r.Reservations[i]; e.Network == n.plugin.Network {
			m[e.IP.String()] = e.Verdict
		}
	}
	return m
}
