// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// What the agent may do on a node: each line is a promise of the README.
func TestPodIsConfined(t *testing.T) {
	root, no, yes := int64(0), false, true
	confined := &corev1.SecurityContext{
		RunAsUser: &root, RunAsGroup: &root,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		Privileged:               &no,
		AllowPrivilegeEscalation: &no,
		ReadOnlyRootFilesystem:   &yes,
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	privileged := &corev1.SecurityContext{RunAsUser: &root, RunAsGroup: &root, Privileged: &yes, ReadOnlyRootFilesystem: &yes}
	const networks, containerd = "/var/lib/cni/networks", "/run/containerd"
	for name, overlay := range overlays {
		t.Run(name, func(t *testing.T) {
			pod := build(t, overlay).daemonSet.Spec.Template.Spec
			if len(pod.Containers) != 1 || len(pod.InitContainers)+len(pod.EphemeralContainers) != 0 {
				t.Fatalf("want one container and no others: %+v", pod)
			}
			want, kernel, token := confined, false, true
			paths := map[string]string{networks: networks + ", written, DirectoryOrCreate", containerd: containerd + ", Directory"}
			if name == "plain" || name == "monitored" {
				paths["/var/lib/kubelet/pods-api"] = "/var/lib/kubelet/pods-api, DirectoryOrCreate"
			} else {
				want, kernel, token = privileged, true, false
				paths["/var/lib/cni/results"] = "/var/lib/cni/results, DirectoryOrCreate"
			}
			if diff := cmp.Diff(want, pod.Containers[0].SecurityContext); diff != "" {
				t.Errorf("security context of the container (-want +got):\n%s", diff)
			}
			if pod.SecurityContext != nil {
				t.Errorf("the pod has a security context of its own: %+v", pod.SecurityContext)
			}
			if pod.HostPID != kernel || pod.HostIPC || pod.ShareProcessNamespace != nil {
				t.Errorf("hostPID %v, hostIPC %v, shareProcessNamespace %v; want %v and none of the others", pod.HostPID, pod.HostIPC, pod.ShareProcessNamespace, kernel)
			}
			if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken != token {
				t.Errorf("token of the service account mounted: %v, want %v", pod.AutomountServiceAccountToken, token)
			}
			if diff := cmp.Diff(paths, mounted(t, &pod)); diff != "" {
				t.Errorf("paths of the node (-want +got):\n%s", diff)
			}
		})
	}
}

// mounted returns the mount of each path of the node. Any other volume is an error.
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

// The agent must run on every node, also on one that has no address left, is tainted, or is full.
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

// Probes and endpoints that name pods are on loopback, with any components.
func TestProbes(t *testing.T) {
	for name, overlay := range overlays {
		m := build(t, overlay)
		if listen, ok := m.environment(t, podFields)["HOSTLOCAL_GC_LISTEN"]; ok || len(m.container().Args) != 1 {
			t.Errorf("%s: the agent listens at %q and has the arguments %q, and the probes ask where it does by default", name, listen, m.container().Args)
		}
		for _, p := range []struct {
			probe *corev1.Probe
			path  string
		}{{m.container().LivenessProbe, "/healthz"}, {m.container().ReadinessProbe, "/readyz"}} {
			if p.probe == nil || p.probe.HTTPGet == nil {
				t.Fatalf("%s: no probe for %s", name, p.path)
			}
			if g := p.probe.HTTPGet; g.Path != p.path || net.JoinHostPort(g.Host, g.Port.String()) != "127.0.0.1:9776" {
				t.Errorf("%s: probe %+v; want %s on loopback", name, g, p.path)
			}
		}
	}
}

// The complete environment of the agent.
func TestEnvironment(t *testing.T) {
	base := map[string]string{
		"HOSTLOCAL_GC_NETWORK": "podnet", "HOSTLOCAL_GC_SOURCE": "kubelet,kube cri", "HOSTLOCAL_GC_EVENTS": "true",
		"HOSTLOCAL_GC_REQUIRE_POD": "kube-system/hostlocal-gc-x", "NODE_NAME": "node-1",
	}
	for name, overlay := range overlays {
		want := maps.Clone(base)
		if strings.HasPrefix(name, "no API") || overlay == inPlace {
			want["HOSTLOCAL_GC_SOURCE"], want["HOSTLOCAL_GC_EVENTS"] = "cri netns cnicache", "false"
		}
		if strings.HasSuffix(name, "monitored") || overlay == inPlace {
			want["HOSTLOCAL_GC_METRICS_LISTEN"] = "[192.0.2.7]:9777"
		}
		m := build(t, overlay)
		got := m.environment(t, podFields)
		for _, name := range []string{"POD_NAME", "POD_NAMESPACE", "NODE_IP"} {
			delete(got, name) // used by other variables only
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if links := m.daemonSet.Spec.Template.Spec.EnableServiceLinks; links == nil || *links {
			t.Errorf("%s: a Service called hostlocal-gc would set variables of the agent's", name)
		}
	}
}

// Each variable in manifests, README and runbook belongs to a flag of the agent, which refuses
// others. The agent's default address is the one that probes use.
func TestVariables(t *testing.T) {
	binary, err := makeCommand(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), binary, "agent", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	flags := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`).FindAllStringSubmatch(string(help), -1) {
		flags["HOSTLOCAL_GC_"+strings.ToUpper(strings.ReplaceAll(m[1], "-", "_"))] = true
	}
	if !strings.Contains(strings.Join(strings.Fields(string(help)), " "), `(default "127.0.0.1:9776")`) { // lines are wrapped
		t.Errorf("the agent does not listen at 127.0.0.1:9776 by default:\n%s", help)
	}
	found := 0
	for _, pattern := range []string{manifestsDir + "/*.yaml", manifestsDir + "/*/*.yaml", manifestsDir + "/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range regexp.MustCompile(`HOSTLOCAL_GC_\w+`).FindAllString(string(text), -1) {
				if found++; !flags[name] {
					t.Errorf("%s: the agent has no flag for %s", f, name)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d variables were found", found)
	}
}

// The rights, and who has them. The sources read pods and nodes, and Events are written for people.
func TestRights(t *testing.T) {
	m := build(t, plain)
	if diff := cmp.Diff([]string{"ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "Role", "RoleBinding", "ServiceAccount"}, m.kinds); diff != "" {
		t.Errorf("kinds of objects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
	}, m.clusterRole.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}, m.role.Rules); diff != "" {
		t.Errorf("rules in %s (-want +got):\n%s", m.role.Namespace, diff)
	}
	if m.role.Namespace != corev1.NamespaceDefault || m.binding.Namespace != corev1.NamespaceDefault {
		t.Errorf("rights for Events in %s, bound in %s; those about a Node are in default", m.role.Namespace, m.binding.Namespace)
	}
	if m.clusterRole.AggregationRule != nil {
		t.Error("rules of other roles come in by aggregation")
	}
	pod := m.daemonSet.Spec.Template.Spec
	if pod.ServiceAccountName != m.account.Name || m.account.Namespace != m.daemonSet.Namespace {
		t.Errorf("the pod's account %s/%s is not %s/%s", m.daemonSet.Namespace, pod.ServiceAccountName, m.account.Namespace, m.account.Name)
	}
	account := []rbacv1.Subject{{Kind: "ServiceAccount", Name: m.account.Name, Namespace: m.account.Namespace}}
	for _, row := range []struct {
		subjects []rbacv1.Subject
		ref      rbacv1.RoleRef
		kind     string
	}{{m.clusterBinding.Subjects, m.clusterBinding.RoleRef, "ClusterRole"}, {m.binding.Subjects, m.binding.RoleRef, "Role"}} {
		if diff := cmp.Diff(account, row.subjects); diff != "" {
			t.Errorf("who has the rights (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: row.kind, Name: "hostlocal-gc"}, row.ref); diff != "" {
			t.Errorf("what is bound (-want +got):\n%s", diff)
		}
	}
	for _, labels := range []map[string]string{m.daemonSet.Spec.Template.Labels, build(t, monitored).podMonitor.Spec.Selector.MatchLabels} {
		if diff := cmp.Diff(m.daemonSet.Spec.Selector.MatchLabels, labels); diff != "" {
			t.Errorf("labels by which the pods are found (-selector +got):\n%s", diff)
		}
	}
}

// The component no-api leaves no object that grants a right.
func TestNoAPI(t *testing.T) {
	m := build(t, noAPI)
	if diff := cmp.Diff([]string{"ConfigMap", "DaemonSet", "ServiceAccount"}, m.kinds); diff != "" {
		t.Errorf("kinds of objects (-want +got):\n%s", diff)
	}
}

// A file with several patches that delete makes kubectl 1.32 panic. Its kustomize, 5.5, can't be
// linked here beside the version of the other tests.
func TestOneDeletionAFile(t *testing.T) {
	files, err := filepath.Glob(manifestsDir + "/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count("\n"+string(text), "\n$patch: delete"); n > 1 {
			t.Errorf("%s deletes %d objects by as many patches; a patch with a target deletes several", f, n)
		}
	}
}

// All namespaced objects are in one namespace, and change it together.
func TestNamespace(t *testing.T) {
	for overlay, want := range map[string]string{
		monitored: "kube-system", "namespace: agents\n" + monitored: "agents",
	} {
		m := build(t, overlay)
		for what, got := range map[string]string{
			"DaemonSet": m.daemonSet.Namespace, "ServiceAccount": m.account.Namespace, "subject": m.clusterBinding.Subjects[0].Namespace,
			"other subject": m.binding.Subjects[0].Namespace, "ConfigMap": m.config.Namespace,
			"PodMonitor": m.podMonitor.Namespace, "PrometheusRule": m.rule.Namespace, "dashboard": m.dashboard.Namespace,
		} {
			if got != want {
				t.Errorf("%s is in namespace %q, want %q", what, got, want)
			}
		}
	}
}

// The monitor uses the port that the patch opens.
func TestMonitorFindsThePort(t *testing.T) {
	m := build(t, monitored)
	want := []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9777, HostPort: 9777}}
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
