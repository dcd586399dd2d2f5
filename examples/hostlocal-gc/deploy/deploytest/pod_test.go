// SPDX-License-Identifier: Apache-2.0

package deploytest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// What the agent may do to a node: each of these is a promise of the README.
func TestPodIsConfined(t *testing.T) {
	for name, overlay := range map[string]string{"plain": plain, "monitored": monitored} {
		t.Run(name, func(t *testing.T) {
			pod := build(t, overlay).daemonSet.Spec.Template.Spec
			if len(pod.Containers) != 1 || len(pod.InitContainers)+len(pod.EphemeralContainers) != 0 {
				t.Fatalf("want one container and no others: %+v", pod)
			}
			c := pod.Containers[0]
			s := c.SecurityContext
			if s == nil {
				t.Fatal("the container has no security context")
			}
			root, no, yes := int64(0), false, true
			want := &corev1.SecurityContext{
				RunAsUser: &root, RunAsGroup: &root,
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				Privileged:               &no,
				AllowPrivilegeEscalation: &no,
				ReadOnlyRootFilesystem:   &yes,
				SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
			if diff := cmp.Diff(want, s); diff != "" {
				t.Errorf("security context of the container (-want +got):\n%s", diff)
			}
			if pod.SecurityContext != nil {
				t.Errorf("the pod has a security context of its own: %+v", pod.SecurityContext)
			}
			if pod.HostPID || pod.HostIPC || pod.ShareProcessNamespace != nil {
				t.Errorf("hostPID %v, hostIPC %v, shareProcessNamespace %v; want none of them", pod.HostPID, pod.HostIPC, pod.ShareProcessNamespace)
			}
			if diff := cmp.Diff(map[string]string{
				"/var/lib/cni/networks":     "/var/lib/cni/networks, written, DirectoryOrCreate",
				"/run/containerd":           "/run/containerd, Directory",
				"/var/lib/kubelet/pods-api": "/var/lib/kubelet/pods-api, DirectoryOrCreate",
			}, mounted(t, &pod)); diff != "" {
				t.Errorf("paths of the node (-want +got):\n%s", diff)
			}
		})
	}
}

// mounted says which paths of the node are where in the container, and how. Any
// other volume is an error.
func mounted(t *testing.T, pod *corev1.PodSpec) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, m := range pod.Containers[0].VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 || pod.Volumes[i].HostPath == nil || m.SubPath+m.SubPathExpr != "" || m.MountPropagation != nil {
			t.Fatalf("mount %+v is not of a whole path of the node", m)
		}
		text := pod.Volumes[i].HostPath.Path
		if !m.ReadOnly {
			text += ", written"
		}
		if kind := pod.Volumes[i].HostPath.Type; kind != nil {
			text += ", " + string(*kind)
		}
		all[m.MountPath] = text
	}
	if len(all) != len(pod.Volumes) {
		t.Errorf("%d volumes, and %d mounts", len(pod.Volumes), len(all))
	}
	return all
}

// The agent must run on every node, also on one that has no address left, is
// tainted, or is full.
func TestPodRunsWhereItIsNeeded(t *testing.T) {
	pod := build(t, plain).daemonSet.Spec.Template.Spec
	if !pod.HostNetwork {
		t.Error("a pod that needs an address can't start on a node that has none left")
	}
	if pod.DNSPolicy != corev1.DNSDefault {
		t.Errorf("DNS policy %q needs the cluster's DNS to be up", pod.DNSPolicy)
	}
	if diff := cmp.Diff([]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
	if pod.PriorityClassName != "system-node-critical" {
		t.Errorf("priority class %q", pod.PriorityClassName)
	}
	if s := pod.TerminationGracePeriodSeconds; s == nil || *s < 2 || *s > 10 {
		t.Errorf("grace period %v; the agent needs a second", s)
	}
	r := pod.Containers[0].Resources
	if r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() || r.Limits.Memory().IsZero() {
		t.Errorf("resources are not all there: %+v", r)
	}
	if !r.Limits.Cpu().IsZero() {
		t.Error("an agent that is throttled while it holds the lock makes ADDs wait")
	}
}

// Probes ask where the agent listens.
func TestProbes(t *testing.T) {
	for name, row := range map[string]struct{ overlay, listen, host string }{
		"loopback":           {plain, "--listen=127.0.0.1:9776", "127.0.0.1"},
		"the node's address": {monitored, "--listen=[$(NODE_IP)]:9776", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := build(t, row.overlay).daemonSet.Spec.Template.Spec.Containers[0]
			if !slices.Contains(c.Args, row.listen) {
				t.Errorf("%s is not among the arguments %q", row.listen, c.Args)
			}
			for _, p := range []struct {
				probe *corev1.Probe
				path  string
			}{{c.LivenessProbe, "/healthz"}, {c.ReadinessProbe, "/readyz"}} {
				if p.probe == nil || p.probe.HTTPGet == nil {
					t.Fatalf("no probe for %s", p.path)
				}
				if g := p.probe.HTTPGet; g.Path != p.path || g.Port.IntValue() != 9776 || g.Host != row.host {
					t.Errorf("probe %+v; want %s at port 9776 of host %q", g, p.path, row.host)
				}
			}
		})
	}
}

// Each variable of an argument is set, and each that is set is used.
func TestVariables(t *testing.T) {
	for name, overlay := range map[string]string{"plain": plain, "monitored": monitored} {
		c := build(t, overlay).daemonSet.Spec.Template.Spec.Containers[0]
		var used, set []string
		for _, m := range regexp.MustCompile(`\$\((\w+)\)`).FindAllStringSubmatch(strings.Join(c.Args, " "), -1) {
			used = append(used, m[1])
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil || e.ValueFrom.FieldRef == nil {
				t.Errorf("%s: %s is not of the pod's own fields", name, e.Name)
			}
			set = append(set, e.Name)
		}
		slices.Sort(used)
		slices.Sort(set)
		if diff := cmp.Diff(used, set); diff != "" {
			t.Errorf("%s: variables (-used +set):\n%s", name, diff)
		}
	}
}

// The rights, and who has them. Reading pods and nodes is for the sources,
// Events are for people; nothing else is needed.
func TestRights(t *testing.T) {
	m := build(t, plain)
	if diff := cmp.Diff([]string{"ClusterRole", "ClusterRoleBinding", "DaemonSet", "ServiceAccount"}, slices.Sorted(slices.Values(m.kinds))); diff != "" {
		t.Errorf("kinds of objects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}, m.role.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if m.role.AggregationRule != nil {
		t.Error("rules of other roles come in by aggregation")
	}
	pod := m.daemonSet.Spec.Template.Spec
	if pod.ServiceAccountName != m.account.Name || m.account.Namespace != m.daemonSet.Namespace {
		t.Errorf("the pod's account %s/%s is not %s/%s", m.daemonSet.Namespace, pod.ServiceAccountName, m.account.Namespace, m.account.Name)
	}
	if diff := cmp.Diff([]rbacv1.Subject{{Kind: "ServiceAccount", Name: m.account.Name, Namespace: m.account.Namespace}}, m.binding.Subjects); diff != "" {
		t.Errorf("who has the rights (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: m.role.Name}, m.binding.RoleRef); diff != "" {
		t.Errorf("what is bound (-want +got):\n%s", diff)
	}
	for _, labels := range []map[string]string{m.daemonSet.Spec.Template.Labels, build(t, monitored).podMonitor.Spec.Selector.MatchLabels} {
		if diff := cmp.Diff(m.daemonSet.Spec.Selector.MatchLabels, labels); diff != "" {
			t.Errorf("labels by which the pods are found (-selector +got):\n%s", diff)
		}
	}
}

// All that is in a namespace is in one, and moves together.
func TestNamespace(t *testing.T) {
	for overlay, want := range map[string]string{
		monitored: "kube-system", "namespace: agents\n" + monitored: "agents", inPlace: "kube-system",
	} {
		m := build(t, overlay)
		for what, got := range map[string]string{
			"DaemonSet": m.daemonSet.Namespace, "ServiceAccount": m.account.Namespace, "subject": m.binding.Subjects[0].Namespace,
			"PodMonitor": m.podMonitor.Namespace, "PrometheusRule": m.rule.Namespace, "dashboard": m.dashboard.Namespace,
		} {
			if got != want {
				t.Errorf("%s is in namespace %q, want %q", what, got, want)
			}
		}
	}
}

// The monitor asks the port that the patch opens.
func TestMonitorFindsThePort(t *testing.T) {
	m := build(t, monitored)
	want := []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9776, HostPort: 9776}}
	if diff := cmp.Diff(want, m.daemonSet.Spec.Template.Spec.Containers[0].Ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	if e := m.podMonitor.Spec.PodMetricsEndpoints; len(e) != 1 || e[0].Port == nil || *e[0].Port != "metrics" || e[0].Path != "/metrics" {
		t.Errorf("endpoints: %+v", e)
	}
	if ports := build(t, plain).daemonSet.Spec.Template.Spec.Containers[0].Ports; ports != nil {
		t.Errorf("on loopback, and yet with ports: %+v", ports)
	}
}
