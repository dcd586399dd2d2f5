// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// TestCost measures the cost of one pass for the API server, the network and the node. The
// CPU time is that of the agent. With the race detector it means nothing.
func TestCost(t *testing.T) {
	n := newNode(t)
	n.reserve("leaked", old)
	var out strings.Builder
	out.WriteString("API server: requests and answers of a pass over one network (real kube-apiserver and etcd)\n")
	fmt.Fprintf(&out, "%5s  %-28s %-16s %12s %12s %9s\n", "pods", "source", "requests", "answers", "on the wire", "CPU")
	for _, size := range []struct{ from, to int }{{0, 300}, {300, 1000}} {
		n.crowd(size.from, size.to)
		more := strings.Repeat(" LIST", (size.to-1)/kube.DefaultPageSize)
		for _, row := range []struct {
			name, contentType string
			opts              kube.Options
			want              string
		}{
			{"default options", "", kube.Options{}, "GET LIST" + more},
			{"JSON", "application/json", kube.Options{}, "GET LIST" + more},
			{"watch cache", "", kube.Options{WatchCache: true}, "GET LIST"},
			{"no check of the node", "", kube.Options{SkipNodeCheck: true}, "LIST" + more},
		} {
			m := newMeter(t, row.contentType)
			source := caughtUp(n, newSource(m, n.name, row.opts), size.to)
			m.take() // drop the requests so far, and the connection's
			n.plan(source)
			requests, bodies, wire := m.take()
			if requests != row.want {
				t.Errorf("%d pods, %s: requests %q, want %q", size.to, row.name, requests, row.want)
			}
			lists := strings.Count(requests, "LIST")
			fmt.Fprintf(&out, "%5d  %-28s %-16s %12s %12s %9s\n", size.to, row.name,
				fmt.Sprintf("%d GET, %d LIST", strings.Count(requests, "GET"), lists), kib(bodies), kib(wire), n.cpu(source))
		}
	}
	source := informer(n, "spec.nodeName="+n.name)
	n.plan(source)
	fmt.Fprintf(&out, "%5d  %-28s %-16s %12s %12s %9s\n", 1000, "the agent's informer", "none", kib(0), kib(0), n.cpu(source))
	m := newMeter(t, "")
	own, _ := watching(n, m)
	var requests string
	var bodies, wire int64
	for range 5 { // its watch may end meanwhile, and begin with a list
		m.take()
		n.plan(own)
		if requests, bodies, wire = m.take(); requests == "GET" {
			break
		}
	}
	if requests != "GET" {
		t.Errorf("NewInformer: requests %q, want one GET of the Node", requests)
	}
	fmt.Fprintf(&out, "%5d  %-28s %-16s %12s %12s %9s\n", 1000, "NewInformer", "1 GET, 0 LIST", kib(bodies), kib(wire), n.cpu(own))
	fmt.Println(out.String())
}

// plan runs one pass that releases nothing.
func (n *node) plan(source podsource.Source) {
	n.t.Helper()
	_, err := n.pass(source, gc.Options{DryRun: true})
	n.must(err)
}

// cpu returns the mean CPU time of a pass. That of the API server, another process, is not
// included.
func (n *node) cpu(source podsource.Source) string {
	n.t.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		n.must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const passes = 10
	before := used()
	for range passes {
		n.plan(source)
	}
	return fmt.Sprintf("%.1f ms", (used()-before).Seconds()*1000/passes)
}

// crowd creates pods of a usual size, several at a time.
func (n *node) crowd(from, to int) {
	n.t.Helper()
	next := make(chan int)
	errs := make(chan error, 8)
	var workers sync.WaitGroup
	for range cap(errs) {
		workers.Go(func() {
			for i := range next {
				if err := n.usual(fmt.Sprintf("usual-%d", i)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for i := from; i < to && len(errs) == 0; i++ {
		select {
		case next <- i:
		case err := <-errs:
			errs <- err
		}
	}
	close(next)
	workers.Wait()
	select {
	case err := <-errs:
		n.t.Fatal(err)
	default:
	}
}

// usual creates a pod like one of a Deployment with a sidecar. It has about 7 KiB.
func (n *node) usual(name string) error {
	var env []corev1.EnvVar
	for i := range 12 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_NUMBER_%d", i), Value: "http://some-service.some-namespace.svc:8080/path"})
	}
	quantity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	container := func(name string) corev1.Container {
		return corev1.Container{
			Name: name, Image: "registry.example/" + name + "@sha256:" + strings.Repeat("5c7b9a1e", 8), Env: env,
			Resources:      corev1.ResourceRequirements{Requests: quantity, Limits: quantity},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/ready"}}}},
		}
	}
	state := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: name, Ready: true, Image: "registry.example/" + name, ImageID: "registry.example/" + name + "@sha256:" + strings.Repeat("5c7b9a1e", 8),
			ContainerID: "containerd://" + strings.Repeat("6ba7b810", 8), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *ago(old)}},
		}
	}
	pods := n.client.CoreV1().Pods(n.namespace)
	made, err := pods.Create(n.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: n.namespace, Name: name,
			Labels: map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": name, "pod-template-hash": "5c7b9a1e"},
		},
		Spec: corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{container("main"), container("proxy")}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ago(old), ContainerStatuses: []corev1.ContainerStatus{state("main"), state("proxy")}}
	for _, c := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		made.Status.Conditions = append(made.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: *ago(old)})
	}
	_, err = pods.UpdateStatus(n.t.Context(), made, metav1.UpdateOptions{})
	return err
}
