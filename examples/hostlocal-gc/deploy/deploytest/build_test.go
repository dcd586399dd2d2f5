// SPDX-License-Identifier: Apache-2.0

package deploytest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

// manifests are the objects that a kustomization makes, by their kinds.
type manifests struct {
	kinds      []string // of all, in their order
	daemonSet  appsv1.DaemonSet
	account    corev1.ServiceAccount
	role       rbacv1.ClusterRole
	binding    rbacv1.ClusterRoleBinding
	rule       monitoringv1.PrometheusRule
	podMonitor monitoringv1.PodMonitor
	dashboard  corev1.ConfigMap
}

const (
	plain     = "" // the directory's own kustomization
	monitored = "resources: [../deploy]\ncomponents: [../deploy/monitoring]\n"
	inPlace   = "in place" // the directory's own, with what is commented out in it about components
)

// build has kustomize make the objects of the directory, or of a kustomization
// beside it that uses the directory. No object may have a field that its type has
// not, and none may be of a kind that is not looked at here.
func build(t *testing.T, overlay string) manifests {
	t.Helper()
	fs := filesys.MakeFsInMemory()
	for _, pattern := range []string{"*.yaml", "monitoring/*"} {
		files, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no file is called %s: %v", pattern, err)
		}
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := fs.WriteFile("/deploy/"+strings.TrimPrefix(filepath.ToSlash(f), "../"), content); err != nil {
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
		own = bytes.ReplaceAll(own, []byte("# components:\n# - monitoring\n"), []byte("components:\n- monitoring\n"))
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
	for _, object := range made.Resources() {
		text, err := object.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		m.kinds = append(m.kinds, object.GetKind())
		into := map[string]any{
			"DaemonSet": &m.daemonSet, "ServiceAccount": &m.account, "ClusterRole": &m.role, "ClusterRoleBinding": &m.binding,
			"PrometheusRule": &m.rule, "PodMonitor": &m.podMonitor, "ConfigMap": &m.dashboard,
		}[object.GetKind()]
		if into == nil {
			t.Fatalf("nobody here knows what a %s is", object.GetKind())
		}
		if err := yaml.UnmarshalStrict(text, into); err != nil {
			t.Errorf("%s: %v\n%s", object.GetKind(), err, text)
		}
	}
	return m
}

// What is in the README for people to copy is a kustomization that builds, and
// does what it says.
func TestReadmeBuilds(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(readme, -1)
	for i, want := range []struct {
		reason string
		made   func(m manifests) string
		want   string
	}{
		{
			"image and network", func(m manifests) string {
				c := m.daemonSet.Spec.Template.Spec.Containers[0]
				return c.Image + " " + c.Args[0]
			}, "registry.example/team/hostlocal-gc-agent:1.0 --network=cbr0",
		}, {
			"a second network, and no kubelet", func(m manifests) string {
				return strings.Join(m.daemonSet.Spec.Template.Spec.Containers[0].Args[:4], " ")
			}, "--network=storage --network=podnet --source=kube --source=cri",
		}, {
			"CRI-O", func(m manifests) string {
				return m.daemonSet.Spec.Template.Spec.Volumes[1].HostPath.Path + " " + m.daemonSet.Spec.Template.Spec.Containers[0].VolumeMounts[1].MountPath
			}, "/run/crio /run/crio",
		},
	} {
		if i >= len(blocks) {
			t.Fatalf("README.md has %d kustomizations, none for: %s", len(blocks), want.reason)
		}
		overlay := bytes.ReplaceAll(blocks[i][1], []byte("path/to/deploy"), []byte("../deploy"))
		if got := want.made(build(t, string(overlay))); got != want.want {
			t.Errorf("%s: %s, want %s", want.reason, got, want.want)
		}
	}
}

// The component patches by place. Where the arguments have moved it must not
// build, instead of replacing another argument.
func TestListenPatchFitsItsPlace(t *testing.T) {
	m := build(t, monitored)
	if got := fmt.Sprint(m.daemonSet.Spec.Template.Spec.Containers[0].Args); !strings.Contains(got, "--listen=[$(NODE_IP)]:9776") || strings.Contains(got, "127.0.0.1") {
		t.Errorf("with monitoring the agent is told %s", got)
	}
}
