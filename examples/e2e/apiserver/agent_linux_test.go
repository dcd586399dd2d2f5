// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// agentDir is the directory of the agent, with its manifests in deploy.
const agentDir = "../../hostlocal-gc"

// manifests returns the objects of a kustomization with the agent's manifests and the given
// components.
func manifests(t *testing.T, components ...string) []*unstructured.Unstructured {
	t.Helper()
	kustomize, err := build("sigs.k8s.io/kustomize/kustomize/v5")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir()) // kustomize accepts relative paths only
	if err != nil {
		t.Fatal(err)
	}
	deploy, err := filepath.Abs(filepath.Join(agentDir, "deploy"))
	if err != nil {
		t.Fatal(err)
	}
	if deploy, err = filepath.EvalSymlinks(deploy); err != nil {
		t.Fatal(err)
	}
	if deploy, err = filepath.Rel(dir, deploy); err != nil {
		t.Fatal(err)
	}
	text := "resources:\n- " + deploy + "\ncomponents:\n"
	for _, c := range components {
		text += "- " + filepath.Join(deploy, c) + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), kustomize, "build", dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	made, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.String())
	}
	objects, err := decode(made)
	if err != nil || len(objects) == 0 {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	return objects
}

// A real server accepts the manifests with each component, and checks their fields. It does
// not have the kinds of the Prometheus Operator.
func TestManifestsDryRun(t *testing.T) {
	for _, components := range [][]string{nil, {"no-api"}, {"monitoring"}, {"no-api", "monitoring"}} {
		kinds := make(map[string]bool)
		for _, object := range manifests(t, components...) {
			if object.GroupVersionKind().Group == "monitoring.coreos.com" {
				continue
			}
			resource := resourceOf(t, object)
			strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}}
			if _, err := resource.Create(t.Context(), object, strict); err != nil {
				t.Errorf("%v: %s %s: %v", components, object.GetKind(), object.GetName(), err)
			}
			kinds[object.GetKind()] = true
			// The server checks fields: it rejects an unknown one.
			if object.GetKind() != "DaemonSet" {
				continue
			}
			wrong := object.DeepCopy()
			if err := unstructured.SetNestedField(wrong.Object, true, "spec", "template", "spec", "hostNetworks"); err != nil {
				t.Fatal(err)
			}
			if _, err := resource.Create(t.Context(), wrong, strict); err == nil {
				t.Errorf("%v: an unknown field was accepted", components)
			}
		}
		if rights := !slices.Contains(components, "no-api"); !kinds["DaemonSet"] || !kinds["ConfigMap"] || kinds["ClusterRole"] != rights {
			t.Errorf("%v: the kinds are %v", components, kinds)
		}
	}
}

// environment returns the environment and arguments that kubelet would give to the agent's
// container, from the server's ConfigMap and DaemonSet and the given fields of the pod.
func environment(t *testing.T, client kubernetes.Interface, namespace string, fields map[string]string) (env, args []string) {
	t.Helper()
	set, err := client.AppsV1().DaemonSets(namespace).Get(t.Context(), "hostlocal-gc", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	container := set.Spec.Template.Spec.Containers[0]
	for _, from := range container.EnvFrom {
		config, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), from.ConfigMapRef.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range config.Data {
			env = append(env, name+"="+value)
		}
	}
	before := make(map[string]string)
	for _, e := range container.Env {
		value := e.Value
		if e.ValueFrom != nil {
			value = fields[e.ValueFrom.FieldRef.FieldPath]
		}
		value = os.Expand(strings.NewReplacer("$(", "${", ")", "}").Replace(value), func(name string) string { return before[name] })
		before[e.Name] = value
		env = append(env, e.Name+"="+value)
	}
	return env, container.Args
}

// A real server accepts the agent's manifests, and their permissions suffice: with their
// settings and a token of their service account the agent releases, and writes an Event.
func TestAgentWithItsManifests(t *testing.T) {
	objects := manifests(t)
	apply(t, objects...)
	var namespace, account string
	for _, object := range objects {
		if object.GetKind() == "ServiceAccount" {
			namespace, account = object.GetNamespace(), object.GetName()
		}
	}
	n := newNode(t)
	user := "system:serviceaccount:" + namespace + ":" + account
	allowed(t, n.client, user, "list", "pods") // the server uses the roles by now
	allowedIn(t, n.client, user, "create", "events", metav1.NamespaceDefault)
	if may(t, n.client, user, "create", "events", n.namespace) {
		t.Error("the account may write Events in any namespace")
	}

	leaked, held := n.reserve("leaked", old), n.reserve("held", old)
	n.pod("web", with(held...))
	n.pod("agent", onHostNetwork)
	agent := filepath.Join(t.TempDir(), "hostlocal-gc")
	goBuild(t, filepath.Dir(agentDir), agent, "./"+filepath.Base(agentDir))

	env, args := environment(t, n.client, namespace, map[string]string{
		"spec.nodeName": n.name, "metadata.namespace": n.namespace, "metadata.name": "agent",
	})
	// Paths that differ from those of a node, and no runtime.
	cmd := exec.Command(agent, append(args, "--data-dir", n.plugin.DataDir, "--source", "kubelet,kube",
		"--kubeconfig", writeKubeconfig(t, tokenFor(t, namespace, account)), "--listen=")...)
	cmd.Env = env
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	n.must(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// stop ends the agent in any case, before its output is read.
	stop := func(signal os.Signal) {
		_ = cmd.Process.Signal(signal) // it may have ended before
		select {
		case err := <-ended:
			ended <- err
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			ended <- <-ended
		}
	}
	t.Cleanup(func() { stop(os.Kill) })

	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if _, err := os.Lstat(n.plugin.File(leaked[0])); err == nil {
			return false, nil
		}
		events, err := n.client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + n.name})
		return err == nil && len(events.Items) > 0, err
	})
	stop(unix.SIGTERM)
	if ending := <-ended; err != nil || ending != nil {
		t.Errorf("waiting for a release and an Event: %v; the agent ended with %v\n%s", err, ending, log.String())
	}
	ended <- nil // for the cleanup
	if _, err := os.Lstat(n.plugin.File(held[0])); err != nil {
		t.Errorf("the address of a live pod: %v", err)
	}
}
