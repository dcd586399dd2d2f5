// SPDX-License-Identifier: Apache-2.0

// Strict reads Kubernetes objects from its standard input, and prints their kinds. It fails if an
// object has a field twice, or one that its type in k8s.io/api does not have.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	for _, object := range bytes.Split(text, []byte("\n---\n")) {
		var kind struct{ Kind string }
		if err == nil {
			err = yaml.Unmarshal(object, &kind)
		}
		into, ok := map[string]any{
			"DaemonSet": &appsv1.DaemonSet{}, "ServiceAccount": &corev1.ServiceAccount{}, "ConfigMap": &corev1.ConfigMap{},
			"Role": &rbacv1.Role{}, "RoleBinding": &rbacv1.RoleBinding{},
			"ClusterRole": &rbacv1.ClusterRole{}, "ClusterRoleBinding": &rbacv1.ClusterRoleBinding{},
		}[kind.Kind]
		if err == nil && !ok {
			err = fmt.Errorf("unexpected kind %q", kind.Kind)
		}
		if err == nil {
			err = yaml.UnmarshalStrict(object, into)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, kind.Kind, err)
			os.Exit(1)
		}
		fmt.Println(kind.Kind)
	}
}
