// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// decode decodes the objects of a manifest, and rejects duplicate keys.
func decode(text []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		var object map[string]any
		if err := sigsyaml.UnmarshalStrict(document, &object); err != nil {
			return nil, err
		}
		if len(object) > 0 { // comments alone are no object
			objects = append(objects, &unstructured.Unstructured{Object: object})
		}
	}
}

// resourceOf returns the client for objects of the same kind and namespace.
func resourceOf(t *testing.T, object *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(cluster.config(adminToken))
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(clientset(t, adminToken).Discovery())
	if err != nil {
		t.Fatal(err)
	}
	kind := object.GroupVersionKind()
	mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		t.Fatalf("%s %s: %v", kind.Kind, object.GetName(), err)
	}
	if mapping.Scope.Name() != "namespace" {
		return client.Resource(mapping.Resource)
	}
	if object.GetNamespace() == "" {
		t.Fatalf("%s %s has no namespace", kind.Kind, object.GetName())
	}
	return client.Resource(mapping.Resource).Namespace(object.GetNamespace())
}

// apply creates the objects. The server rejects unknown and duplicate fields. The cleanup of
// the test deletes the objects.
func apply(t *testing.T, objects ...*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		resource := resourceOf(t, object)
		if _, err := resource.Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
		t.Cleanup(func() {
			if err := resource.Delete(context.WithoutCancel(t.Context()), object.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// tokenFor returns a token of a service account, made like those that kubelet requests.
func tokenFor(t *testing.T, namespace, name string) string {
	t.Helper()
	got, err := clientset(t, adminToken).CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.Token
}

// writeKubeconfig writes a kubeconfig file with that token.
func writeKubeconfig(t *testing.T, token string) string {
	t.Helper()
	config := cluster.config(token)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {token: %q}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, config.Host, config.CAFile, token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The documented rules suffice for the command.
func TestCommandWithServiceAccount(t *testing.T) {
	n := newNode(t)
	rules, err := sigsyaml.Marshal(documentedRules(t))
	n.must(err)
	objects, err := decode([]byte(strings.NewReplacer("NAMESPACE", n.namespace, "RULES", strings.ReplaceAll(string(rules), "\n", "\n  ")).Replace(`
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: NAMESPACE, name: collector}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: collector}
rules:
  RULES
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: collector}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: collector}
subjects:
  - {kind: ServiceAccount, namespace: NAMESPACE, name: collector}
`)))
	n.must(err)
	apply(t, objects...)
	user := "system:serviceaccount:" + n.namespace + ":collector"
	allowed(t, n.client, user, "get", "nodes")
	allowed(t, n.client, user, "list", "pods")

	leaked, held := n.reserve("leaked", old), n.reserve("held", old)
	n.pod("web", with(held...))
	command := filepath.Join(t.TempDir(), "hostlocal-gc")
	goBuild(t, "../..", command, "./hostlocal-gc")
	out, err := exec.CommandContext(t.Context(), command, "release", "--data-dir", n.plugin.DataDir, "--network", n.plugin.Network,
		"--source", "kube:"+n.name, "--kubeconfig", writeKubeconfig(t, tokenFor(t, n.namespace, "collector"))).CombinedOutput()
	if err != nil || !strings.Contains(string(out), only(leaked)) || !strings.Contains(string(out), "1 in-use, 1 released") {
		t.Errorf("%v\n%s", err, out)
	}
}

// goBuild builds a program of another module of this repository. It does so in the workspace,
// since the versions that the module requires may not be published yet.
func goBuild(t *testing.T, module, path, pkg string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-C", module, "-o", path, pkg)
	cmd.Env = append(os.Environ(), "GOWORK=", "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// Kubelet's own credentials suffice for its node, as documented in the README of the command.
// The Node authorizer allows them to list the pods of that node only.
func TestKubeletsOwnRights(t *testing.T) {
	n := newNode(t)
	n.name = kubeletNode
	n.register(bootID(t))
	leaked, held := n.reserve("leaked", old), n.reserve("held", old)
	n.pod("web", with(held...))
	kubelet := clientset(t, kubeletToken).CoreV1()
	report, err := n.pass(newSource(kubelet, n.name, kube.Options{}), gc.Options{})
	n.must(err)
	n.check(report, map[string]gc.Verdict{only(leaked): gc.Released, only(held): gc.InUse})

	other := newNode(t)
	other.reserve("held", old)
	if err := other.refused(newSource(kubelet, other.name, kube.Options{})); !strings.Contains(err.Error(), `lacks the verb "get"`) {
		t.Errorf("the Node of another kubelet: %v", err)
	}
}
