// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	none   = gc.Verdict(0) // the pod has no addresses
	all    = 1000 * old    // the pod claims every reservation without an owner
	multus = "k8s.v1.cni.cncf.io/network-status"
)

// A step changes a pod, and then runs a pass.
type step struct {
	own     gc.Verdict    // on the addresses of the pod
	claims  time.Duration // reservations without an owner are starting if they are younger, and released otherwise
	changes []change
}

// hazards are those of gc/testdata/hazards.txt that a pass on an API server's pods shows. A name
// has the number and the reason. The test fails without the guard.
var hazards = []struct {
	name, guard string
	steps       []step
	nextCheck   time.Duration // the next check is at most this away; zero is any
}{
	{"104 running, long after the end of the ADD the API server has no address (R4)", "kubepod.Convert sets the start",
		[]step{{none, 2 * time.Hour, []change{started(2 * time.Hour)}}}, 0},
	{"08 dual stack, the status does not have the IPv6 address yet (R3)", "gc.SiblingInUse: another address of the container",
		[]step{{gc.InUse, 0, []change{oneAddress}}}, 0},
	{"12 failed long ago, the status still has the addresses", "kubepod.Convert sets Finished and its time",
		[]step{{gc.InUse, 0, []change{finished(corev1.PodFailed, old)}}, {gc.Released, 0, []change{written(old)}}}, 0},
	{"13 the sandbox is down for a day, and the pod has just exceeded its deadline", "kubepod: finished uses the managed fields",
		[]step{{gc.InUse, 0, []change{rejected, sandbox(corev1.ConditionFalse, old)}}, {gc.Released, 0, []change{written(time.Hour)}}}, 0},
	{"13 just succeeded, the sandbox is still up", "kubepod.Convert sets no end that is too early",
		[]step{{gc.InUse, 0, []change{finished(corev1.PodSucceeded, time.Second)}}}, 0},
	{"13 just failed, kubelet reported no address", "kubepod.Convert sets no end that is too early",
		[]step{{none, 2 * old, []change{finished(corev1.PodFailed, time.Second)}}}, 0},
	{"13 failed, and only the managed fields have a time", "kubepod: statusWritten",
		[]step{{gc.InUse, 0, []change{rejected}}, {gc.Released, 0, []change{written(time.Hour)}}}, 0},
	{"22 the addresses in a second network are not in podIPs (R3)", "kubepod.Convert reads the annotation",
		[]step{{gc.InUse, 0, []change{inAnnotation}}}, 0},
	{"28 a pod in the node's network has the node's address, and is a pod (R3, R9)", "kubepod.Convert leaves the address out",
		[]step{{gc.Released, 0, []change{onHostNetwork}}}, 0},
	{"31 failed pods that never had an address stay for days", "kubepod.Convert sets Finished without a known end",
		[]step{{none, 2 * old, []change{rejected}}, {none, 0, []change{written(old)}}}, 0},
	{"32 a pod has been in ContainerCreating for days", "kubepod.Convert sets the start",
		[]step{{none, 2 * old, []change{pending}}}, 0},
	{"36 kubelet has not reported the start (R4)", "kubepod.Convert uses no other time as the start",
		[]step{{none, all, []change{pending, notStarted}}}, 0},
	{"48 the clock was set back after a pod finished, which holds for five minutes from now", "kubepod.Convert sets Finished",
		[]step{{gc.InUse, 0, []change{finished(corev1.PodSucceeded, -time.Hour)}}}, 5 * time.Minute},
	{"49 no API server knows a container of nerdctl, which each node here has (R14)", "Source.Pods declares the form of its IDs",
		[]step{{gc.InUse, 0, nil}}, 0},
	{"56 a restarted kubelet rejects a pod that runs", "kubepod.Convert does not use the start of such a pod as its end",
		[]step{{gc.InUse, 0, nil}, {gc.InUse, 0, []change{rejected}}, {gc.Released, 0, []change{written(5 * time.Minute)}}}, 0},
	{"57 all containers have ended, the sandbox is up", "kubepod.Convert uses the condition rather than the containers", []step{
		{gc.InUse, 0, []change{finished(corev1.PodSucceeded, time.Hour), sandbox(corev1.ConditionTrue, old)}},
		{gc.InUse, 0, []change{sandbox(corev1.ConditionFalse, 5*time.Minute)}}, // the status has just been written
		{gc.Released, 0, []change{written(5 * time.Minute)}}}, 0},
	{"67 a tenant wrote garbage, and the pod may hold more addresses", "kubepod.Convert sets MoreIPs",
		[]step{{gc.InUse, 2 * old, []change{annotated(multus, `[{"ips":["10.9.0.3"]`)}}}, 0},
	{"76 after a restart of kubelet a static pod has a later start than its sandbox", "kubepod.Convert sets no start for it",
		[]step{{none, all, []change{pending, started(time.Minute), annotated(corev1.MirrorPodAnnotationKey, "5c7b9a1e")}}}, 0},
}

func TestHazards(t *testing.T) {
	unowned := map[string]time.Duration{"young": time.Hour, "middle": old, "oldest": 3 * old}
	for _, h := range hazards {
		t.Run(h.name, func(t *testing.T) {
			t.Log("guard:", h.guard)
			n := newNode(t)
			n.pod("agent", onHostNetwork)
			n.reserve(nerdctl, old, gc.Foreign)
			for container, age := range unowned {
				n.reserve(container, age, gc.Starting)
			}
			if h.steps[0].own != none {
				n.reserve("web", old, gc.InUse)
			}
			n.pod("web", append([]change{with("web")}, h.steps[0].changes...)...)
			for i, s := range h.steps {
				if i > 0 {
					n.change("web", s.changes...)
				}
				for container := range n.want {
					if container == "web" {
						n.want[container] = s.own
					} else if age, ok := unowned[container]; ok && age >= s.claims {
						n.want[container] = gc.Released
					}
				}
				n.collect()
			}
			if next := time.Until(n.report.NextCheck); h.nextCheck != 0 && (next < 0 || next > h.nextCheck) {
				t.Errorf("the next check is in %v", next)
			}
		})
	}
}

// A pod is created again under its name, and the reservation of the old one leaked.
// Guard: [kubepod.Convert] claims the addresses of the status, also those of a pod that is being deleted.
func TestHazard10RecreatedUnderItsName(t *testing.T) {
	n := newNode(t)
	n.web("web-0")
	n.collect()
	n.remove("web-0", 30)
	n.collect() // it is being deleted, and still in the list
	n.remove("web-0", 0)
	n.reserve("after", old, gc.InUse)
	n.pod("web-0", with("after"))
	n.want["web-0"] = gc.Released
	n.collect()
}

// A change changes a pod that has run for two days.
type change func(*node, *corev1.Pod)

// with sets the addresses of a container.
func with(container string) change {
	return func(n *node, pod *corev1.Pod) {
		for _, ip := range n.ips[container] {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip.String()})
			pod.Status.PodIP = pod.Status.PodIPs[0].IP
		}
	}
}

// inAnnotation moves an address from the status to the annotation of Multus.
func inAnnotation(n *node, pod *corev1.Pod) {
	annotated(multus, fmt.Sprintf(`[{"ips":["192.0.2.7"],"default":true},{"interface":"net1","ips":[%q]}]`, pod.Status.PodIP))(n, pod)
	pod.Status.PodIP, pod.Status.PodIPs = "192.0.2.7", []corev1.PodIP{{IP: "192.0.2.7"}}
}

func annotated(key, value string) change {
	return func(_ *node, pod *corev1.Pod) { metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, value) }
}

func oneAddress(_ *node, pod *corev1.Pod)    { pod.Status.PodIPs = pod.Status.PodIPs[:1] }
func onHostNetwork(_ *node, pod *corev1.Pod) { pod.Spec.HostNetwork = true }
func onAnotherNode(_ *node, pod *corev1.Pod) { pod.Spec.NodeName = "another-node" }
func pending(_ *node, pod *corev1.Pod)       { pod.Status.Phase = corev1.PodPending }
func notStarted(_ *node, pod *corev1.Pod)    { pod.Status.StartTime = nil }

func ago(d time.Duration) *metav1.Time { return &metav1.Time{Time: time.Now().Add(-d)} }

func started(since time.Duration) change {
	return func(_ *node, pod *corev1.Pod) { pod.Status.StartTime = ago(since) }
}

// rejected sets what kubelet writes, with a reason, for a pod that it does not admit, or no longer after its restart.
func rejected(_ *node, pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }

// finished sets the phase, and the given time as the end of the containers.
func finished(p corev1.PodPhase, since time.Duration) change {
	return func(_ *node, pod *corev1.Pod) {
		ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: *ago(since)}}
		pod.Status.Phase, pod.Status.ContainerStatuses = p, []corev1.ContainerStatus{{Name: "main", State: ended}}
	}
}

// sandbox sets the condition of the pod's sandbox, and the time of its last change.
func sandbox(up corev1.ConditionStatus, since time.Duration) change {
	return func(_ *node, pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: up, LastTransitionTime: *ago(since)}}
	}
}

// written sets the times in the pod's managed fields. A request that changes the status can't do it.
func written(since time.Duration) change {
	return func(_ *node, pod *corev1.Pod) {
		for i := range pod.ManagedFields {
			pod.ManagedFields[i].Time = ago(since)
		}
		metav1.SetMetaDataLabel(&pod.ObjectMeta, "written", "true") // the server ignores an update of times alone
	}
}
