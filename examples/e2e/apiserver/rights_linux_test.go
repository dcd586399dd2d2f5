// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// documentedRules returns the rules in the package comment of podsource/kube.
func documentedRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	text, err := os.ReadFile("../../../podsource/kube/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var block strings.Builder
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "//\t"); ok && (block.Len() > 0 || rest == "rules:\n") {
			block.WriteString(rest)
		}
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte(block.String()), &role); err != nil || len(role.Rules) != 2 {
		t.Fatalf("reading the rules in the package comment: %v, %v", role.Rules, err)
	}
	return role.Rules
}

// grant binds rules to a user, and returns when the server applies them.
func grant(t *testing.T, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	client := clientset(t, adminToken)
	meta := metav1.ObjectMeta{Name: "servertest-" + user}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := client.RbacV1().ClusterRoleBindings().Delete(ctx, meta.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := client.RbacV1().ClusterRoles().Delete(ctx, meta.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	for _, rule := range rules {
		allowed(t, client, user, rule.Verbs[0], rule.Resources[0])
	}
}

// allowed waits until the user has the permission in all namespaces.
func allowed(t *testing.T, client kubernetes.Interface, user, verb, resource string) {
	t.Helper()
	allowedIn(t, client, user, verb, resource, metav1.NamespaceAll)
}

// allowedIn waits until the user has the permission in a namespace.
func allowedIn(t *testing.T, client kubernetes.Interface, user, verb, resource, namespace string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return may(t, client, user, verb, resource, namespace), nil
	})
	if err != nil {
		t.Fatalf("waiting until %s may %s %s: %v", user, verb, resource, err)
	}
}

// may reports whether the user has the permission now.
func may(t *testing.T, client kubernetes.Interface, user, verb, resource, namespace string) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: resource, Namespace: namespace},
	}}
	got, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.Allowed
}

// The error names the missing permission.
func TestRights(t *testing.T) {
	rules := documentedRules(t)
	grant(t, "minimal", rules...)
	grant(t, "no-list-pods", rules[0])
	grant(t, "no-get-nodes", rules[1])
	n := newNode(t)
	leaked, held := n.reserve("leaked", old), n.reserve("held", old)
	n.pod("web", with(held...))
	for _, row := range []struct{ reason, token, want string }{
		{"it may only read nodes", "no-list-pods", `listing its pods: this account lacks the verb "list" on resource "pods"`},
		{"it may only list pods", "no-get-nodes", `reading its Node: this account lacks the verb "get" on resource "nodes"`},
		{"it has no permission", "nobody", `lacks the verb "get" on resource "nodes"`},
		{"its token is unknown", "wrong-token", "the API server does not know this client"},
	} {
		err := n.refused(newSource(clientset(t, row.token).CoreV1(), n.name, kube.Options{}))
		if !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: the error does not say %q: %v", row.reason, row.want, err)
		}
	}
	// The documented rules suffice.
	report, err := n.pass(newSource(clientset(t, "minimal").CoreV1(), n.name, kube.Options{}), gc.Options{})
	n.must(err)
	n.check(report, map[string]gc.Verdict{only(leaked): gc.Released, only(held): gc.InUse})
}

// The name of a missing or another node is a permanent error, for which the hook does not
// wait.
func TestWrongNodeName(t *testing.T) {
	n, other := newNode(t), newNode(t)
	n.reserve("held", old)
	other.pod("web", onHostNetwork)
	other.setStatus(func(s *corev1.NodeStatus) { s.NodeInfo.BootID = "another-machine" })
	for name, want := range map[string]string{
		"no-such-node": "there is no such Node: is this the name under which kubelet registered it?",
		other.name:     "another-machine",
	} {
		m := newMeter(t, "")
		r, err := gc.New(hostlocal.New(n.plugin.DataDir), []string{n.plugin.Network}, newSource(m, name, kube.Options{}),
			gc.Options{SourceTimeout: 2 * patience, StartupTimeout: 2 * patience})
		n.must(err)
		report, err := r.AtStartup(t.Context())
		if !errors.Is(err, podsource.ErrPermanent) || !strings.Contains(err.Error(), want) || report.Counts()[gc.Released] != 0 {
			t.Errorf("node name %q: got %v, %v, want an error that says %q", name, report.Counts(), err, want)
		}
		if requests := m.take(); requests != "GET" {
			t.Errorf("node name %q: the requests of the hook were %q, want one GET", name, requests)
		}
	}
	// Until kubelet has reported after a boot, a later call may succeed.
	n.setStatus(func(s *corev1.NodeStatus) {
		s.NodeInfo.BootID = "of-before-the-boot"
		s.Conditions[0].LastHeartbeatTime = *ago(100 * 365 * old)
	})
	if err := n.refused(n.source()); !errors.Is(err, podsource.ErrIncomplete) || errors.Is(err, podsource.ErrPermanent) {
		t.Errorf("with its own name, before kubelet has reported: %v", err)
	}
}
