// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// documentedRules returns the rules in the package comment of podsource/kube.
func documentedRules() (rules []rbacv1.PolicyRule) {
	_, block, _ := strings.Cut(string(must(os.ReadFile("../../../podsource/kube/doc.go"))), "//\trules:\n")
	block, _, _ = strings.Cut(block, "//\n")
	check(yaml.UnmarshalStrict([]byte(strings.ReplaceAll(block, "//\t", "")), &rules))
	return rules
}

// grant returns a new user with these rights, which the server applies soon.
func (n *node) grant(rules ...rbacv1.PolicyRule) string {
	user, rbac := metav1.ObjectMeta{Name: fmt.Sprintf("user-%d", time.Now().UnixNano())}, n.client.RbacV1()
	must(rbac.ClusterRoles().Create(n.ctx, &rbacv1.ClusterRole{ObjectMeta: user, Rules: rules}, metav1.CreateOptions{}))
	must(rbac.ClusterRoleBindings().Create(n.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: user, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user.Name}},
	}, metav1.CreateOptions{}))
	return user.Name
}

// The documented rules suffice, and so do kubelet's own credentials for its node, as documented
// in the README of the command. An error names the missing permission.
func TestRights(t *testing.T) {
	n, rules := newNode(t), documentedRules()
	n.web("web")
	unknown := cluster.config()
	unknown.BearerToken = "wrong-token"
	for _, row := range []struct {
		reason string
		client kube.Client
		want   string
	}{
		{"only nodes", cluster.as(n.grant(rules[0])), `listing its pods: this account lacks the verb "list" on resource "pods"`},
		{"only pods", cluster.as(n.grant(rules[1])), `reading its Node: this account lacks the verb "get" on resource "nodes"`},
		{"the kubelet of another node", cluster.as("system:node:another", "system:nodes"), `lacks the verb "get" on resource "nodes"`},
		{"a token of another cluster", kubernetes.NewForConfigOrDie(unknown).CoreV1(), "the API server does not know this client"},
	} {
		t.Log(row.reason)
		n.eventually(func() bool {
			_, err := n.source(row.client, kube.Options{}).Pods(t.Context())
			return err != nil && strings.Contains(err.Error(), row.want)
		})
	}
	for _, client := range []kube.Client{cluster.as(n.grant(rules...)), cluster.as("system:node:"+n.name, "system:nodes")} {
		source := n.source(client, kube.Options{})
		n.listed(source, 1)
		n.collectWith(source, gc.Options{})
	}
}

// kubeconfig writes a kubeconfig with a token, to act as a user if that is not empty.
func kubeconfig(path, token, user string) {
	config := cluster.config()
	check(os.WriteFile(path, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
		clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}], users: [{name: c, user: {token: %q, as: %q}}],
		contexts: [{name: c, context: {cluster: c, user: c}}]}`, config.Host, config.CAFile, token, user), 0o600))
}

// command builds the command in dir, for a node that has been up for long.
func command(dir string) string {
	goCommand("", "build", "-C", "../..", must(cnitest.OldNode(dir)), "-o", filepath.Join(dir, "hostlocal-gc"), "./hostlocal-gc")
	return filepath.Join(dir, "hostlocal-gc")
}

// manifests returns the agent's objects with the given components.
func manifests(t *testing.T, components ...string) (objects []*unstructured.Unstructured) {
	dir := t.TempDir()
	text := fmt.Appendf(nil, "resources: [deploy]\ncomponents: [%s]\n", strings.Join(components, ","))
	check(os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS("../../hostlocal-gc/deploy")))
	check(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600))
	built := must(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir))
	for _, r := range built.Resources() {
		objects = append(objects, &unstructured.Unstructured{Object: must(r.Map())})
	}
	return objects
}

// create creates an object, unless another test did. The server rejects unknown fields.
func create(t *testing.T, object *unstructured.Unstructured, dryRun ...string) error {
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	_, err := dynamic.NewForConfigOrDie(cluster.config()).Resource(resource).Namespace(object.GetNamespace()).
		Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// A real server accepts the manifests with each component, except for the kinds of the Prometheus
// Operator, which it does not have.
func TestManifestsDryRun(t *testing.T) {
	for _, components := range [][]string{nil, {"deploy/no-api"}, {"deploy/monitoring"}, {"deploy/no-api", "deploy/monitoring"}} {
		for _, object := range manifests(t, components...) {
			err := create(t, object, metav1.DryRunAll)
			if err != nil && object.GroupVersionKind().Group != "monitoring.coreos.com" {
				t.Errorf("%v: %s %s: %v", components, object.GetKind(), object.GetName(), err)
			}
		}
	}
}

// The permissions of the manifests suffice: with a token of their service
// account the agent releases.
func TestAgentWithItsManifests(t *testing.T) {
	n, dir := newNode(t), t.TempDir()
	n.web("web")
	n.reserve("leaked", old, gc.Released)
	n.pod("agent", onHostNetwork)
	for _, object := range manifests(t) {
		check(create(t, object))
	}
	accounts := n.client.CoreV1().ServiceAccounts("kube-system")
	request := must(accounts.CreateToken(n.ctx, "hostlocal-gc", &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))
	kubeconfig(filepath.Join(dir, "kubeconfig"), request.Status.Token, "")
	agent := run(dir, "agent", []string{"NODE_NAME=" + n.name}, command(dir), "agent", "--data-dir", n.plugin.DataDir,
		"--network", "podnet", "--require-pod", n.namespace+"/agent",
		"--source", "kubelet", "--source", "kube", "--kubeconfig", "kubeconfig", "--listen=", "--memory", filepath.Join(dir, "memory")) // and no runtime
	t.Cleanup(func() { kill(agent) })
	n.eventually(func() bool {
		_, err := os.Lstat(n.plugin.File(n.ips["leaked"][0]))
		return err != nil
	})
	check(agent.Process.Signal(unix.SIGTERM))
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent ended with %v\n%s", err, must(os.ReadFile(filepath.Join(dir, "agent.log"))))
	}
	delete(n.want, "leaked")
	n.collect()
}
