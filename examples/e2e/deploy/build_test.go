// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// manifestsDir has the manifests under test.
const manifestsDir = "../../hostlocal-gc/deploy"

// manifests are the objects that a kustomization builds, by kind.
type manifests struct {
	kinds          []string // of all objects, sorted
	daemonSet      appsv1.DaemonSet
	config         corev1.ConfigMap
	account        corev1.ServiceAccount
	clusterRole    rbacv1.ClusterRole
	clusterBinding rbacv1.ClusterRoleBinding
	role           rbacv1.Role
	binding        rbacv1.RoleBinding
	rule           monitoringv1.PrometheusRule
	podMonitor     monitoringv1.PodMonitor
	dashboard      corev1.ConfigMap
	text           []byte // all objects as YAML, as kubectl would send them
}

const (
	plain     = "" // the directory's own kustomization
	monitored = "resources: [../deploy]\ncomponents: [../deploy/monitoring]\n"
	noAPI     = "resources: [../deploy]\ncomponents: [../deploy/no-api]\n"
	inPlace   = "in place" // the directory's own, with its commented-out components enabled
)

// overlays are the kustomizations under test, by name.
var overlays = map[string]string{
	"plain": plain, "monitored": monitored, "no API": noAPI, "in place": inPlace,
	"no API, monitored": "resources: [../deploy]\ncomponents: [../deploy/no-api, ../deploy/monitoring]\n",
}

// build builds the objects of the directory, or of a kustomization beside it that uses the
// directory. It fails for an object with a field that its type does not have, and for one of an
// unexpected kind.
func build(t *testing.T, overlay string) manifests {
	t.Helper()
	fs := filesys.MakeFsInMemory()
	for _, pattern := range []string{"*.yaml", "monitoring/*", "no-api/*"} {
		files, err := filepath.Glob(filepath.Join(manifestsDir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no file is called %s: %v", pattern, err)
		}
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := fs.WriteFile("/deploy/"+strings.TrimPrefix(filepath.ToSlash(f), manifestsDir+"/"), content); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir := "/deploy"
	switch overlay {
	case plain:
	case inPlace:
		own, err := fs.ReadFile("/deploy/kustomization.yaml")
		if err != nil {
			t.Fatal(err)
		}
		changed := regexp.MustCompile(`(?m)^# (components:|- monitoring|- no-api)`).ReplaceAll(own, []byte("$1"))
		if bytes.Count(changed, []byte("\n#"))+3 != bytes.Count(own, []byte("\n#")) {
			t.Fatal("kustomization.yaml does not have all components commented out")
		}
		own = changed
		if err := fs.WriteFile("/deploy/kustomization.yaml", own); err != nil {
			t.Fatal(err)
		}
	default:
		dir = "/overlay"
		if err := fs.WriteFile("/overlay/kustomization.yaml", []byte(overlay)); err != nil {
			t.Fatal(err)
		}
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, dir)
	if err != nil {
		t.Fatalf("building with %q: %v", overlay, err)
	}
	var m manifests
	if m.text, err = made.AsYaml(); err != nil {
		t.Fatal(err)
	}
	for _, object := range made.Resources() {
		text, err := object.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		m.kinds = append(m.kinds, object.GetKind())
		into := map[string]any{
			"DaemonSet": &m.daemonSet, "ServiceAccount": &m.account, "Role": &m.role, "RoleBinding": &m.binding,
			"ClusterRole": &m.clusterRole, "ClusterRoleBinding": &m.clusterBinding,
			"PrometheusRule": &m.rule, "PodMonitor": &m.podMonitor, "ConfigMap": &m.config,
		}[object.GetKind()]
		if object.GetName() == "hostlocal-gc-dashboard" {
			into = &m.dashboard
		}
		if into == nil {
			t.Fatalf("unexpected kind %s", object.GetKind())
		}
		if err := yaml.UnmarshalStrict(text, into); err != nil {
			t.Errorf("%s: %v\n%s", object.GetKind(), err, text)
		}
	}
	slices.Sort(m.kinds)
	return m
}

// container returns the agent's container.
func (m *manifests) container() *corev1.Container {
	return &m.daemonSet.Spec.Template.Spec.Containers[0]
}

// environment returns the environment of the agent's container as kubelet makes it: the ConfigMap's
// variables, then the container's own, which may refer to earlier ones.
func (m *manifests) environment(t *testing.T, fields map[string]string) map[string]string {
	t.Helper()
	env := make(map[string]string)
	for _, from := range m.container().EnvFrom {
		if from.ConfigMapRef == nil || from.Prefix != "" || from.ConfigMapRef.Name != m.config.Name {
			t.Fatalf("the environment comes from %+v, and there is a ConfigMap %s", from, m.config.Name)
		}
		maps.Copy(env, m.config.Data)
	}
	for _, e := range m.container().Env {
		value := e.Value
		if e.ValueFrom != nil {
			known := false
			if e.ValueFrom.FieldRef != nil {
				value, known = fields[e.ValueFrom.FieldRef.FieldPath]
			}
			if !known {
				t.Errorf("%s is not of the pod's own fields: %+v", e.Name, e.ValueFrom)
			}
		}
		for name, with := range env {
			value = strings.ReplaceAll(value, "$("+name+")", with)
		}
		if strings.Contains(value, "$(") {
			t.Errorf("%s=%s names what is not set before it", e.Name, value)
		}
		env[e.Name] = value
	}
	return env
}

// podFields are the fields of a pod that the manifests refer to.
var podFields = map[string]string{
	"metadata.name": "hostlocal-gc-x", "metadata.namespace": "kube-system", "spec.nodeName": "node-1", "status.hostIP": "192.0.2.7",
}

// The kustomizations in the README and the runbook build, and do what the text says.
func TestReadmeBuilds(t *testing.T) {
	readme, err := os.ReadFile(manifestsDir + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	variable := func(name string) func(*manifests) string {
		return func(m *manifests) string { return m.environment(t, podFields)[name] }
	}
	want := []struct {
		reason string
		made   func(m *manifests) string
		want   string
	}{
		{"image and network", func(m *manifests) string {
			return m.container().Image + " " + variable("HOSTLOCAL_GC_NETWORK")(m) + " " + variable("HOSTLOCAL_GC_SOURCE")(m)
		}, "registry.example/team/hostlocal-gc:1.0 cbr0 kubelet,kube cri"},
		{"a second network, and nothing of the kubelet", func(m *manifests) string {
			paths := slices.Sorted(maps.Keys(mounted(t, &m.daemonSet.Spec.Template.Spec)))
			return variable("HOSTLOCAL_GC_NETWORK")(m) + "; " + variable("HOSTLOCAL_GC_SOURCE")(m) + "; " + strings.Join(paths, " ")
		}, "podnet storage; kube cri; /run/containerd /var/lib/cni/networks"},
		{"CRI-O", func(m *manifests) string {
			return variable("HOSTLOCAL_GC_SOURCE")(m) + "; " + fmt.Sprint(mounted(t, &m.daemonSet.Spec.Template.Spec))
		}, "kubelet,kube cri:/run/crio/crio.sock; map[/run/crio:/run/crio, Directory /var/lib/cni/networks:/var/lib/cni/networks, " +
			"written, DirectoryOrCreate /var/lib/kubelet/pods-api:/var/lib/kubelet/pods-api, DirectoryOrCreate]"},
		{"the ranges", func(m *manifests) string {
			return variable("HOSTLOCAL_GC_CNI_CONF")(m) + "; " + mounted(t, &m.daemonSet.Spec.Template.Spec)["/etc/cni/net.d"]
		}, "/etc/cni/net.d/10-podnet.conflist; /etc/cni/net.d, Directory"},
		{"no rights in the API", func(m *manifests) string {
			return variable("HOSTLOCAL_GC_SOURCE")(m) + "; " + strings.Join(m.kinds, " ")
		}, "cri netns cnicache; ConfigMap DaemonSet ServiceAccount"},
		{"another namespace", func(m *manifests) string {
			return strings.Join([]string{m.daemonSet.Namespace, m.config.Namespace, m.account.Namespace, m.clusterBinding.Subjects[0].Namespace,
				m.role.Namespace, m.binding.Namespace, m.binding.Subjects[0].Namespace, variable("HOSTLOCAL_GC_NETWORK")(m)}, " ")
		}, "agents agents agents agents default default agents podnet"},
		{"metrics", func(m *manifests) string {
			return variable("HOSTLOCAL_GC_METRICS_LISTEN")(m) + "; " + m.podMonitor.Labels["release"] + "; " + m.rule.Labels["release"]
		}, "[192.0.2.7]:9777; prometheus; prometheus"},
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) != len(want) {
		t.Fatalf("README.md has %d kustomizations, and %d are known here", len(blocks), len(want))
	}
	for i, w := range want {
		m := build(t, strings.ReplaceAll(string(blocks[i][1]), "path/to/deploy", "../deploy"))
		if got := w.made(&m); got != w.want {
			t.Errorf("%s:\n%s, want\n%s", w.reason, got, w.want)
		}
	}
}
