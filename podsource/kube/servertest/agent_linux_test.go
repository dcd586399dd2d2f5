// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
)

// agentDir has the agent, and its manifests in deploy.
const agentDir = "../../../examples/hostlocal-gc"

// manifests returns the objects of the agent's manifests.
func manifests(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(agentDir, "deploy", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatalf("there are no manifests in %s/deploy", agentDir)
		}
		t.Skipf("there are no manifests in %s/deploy", agentDir)
	}
	var all []*unstructured.Unstructured
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue // it is for kubectl, not for the server
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := decode(text)
		if err != nil || len(objects) == 0 {
			t.Fatalf("%s: %d objects, %v", file, len(objects), err)
		}
		all = append(all, objects...)
	}
	return all
}

// The agent's manifests are right in the eyes of a real server, and the rights
// that they give suffice: the agent releases, and tells of it in an Event, with
// nothing but a token of their service account.
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
	allowed(t, n.client, user, "list", "pods") // the server has taken notice of the role

	leaked, held := n.reserve("leaked", old), n.reserve("held", old)
	n.pod("web", with(held...))
	n.pod("agent", onHostNetwork)
	agent := filepath.Join(t.TempDir(), "hostlocal-gc")
	goBuild(t, filepath.Dir(agentDir), agent, "./"+filepath.Base(agentDir))

	cmd := exec.Command(agent, "agent",
		"--data-dir", n.plugin.DataDir, "--network", n.plugin.Network, "--node", n.name,
		"--source", "kube", "--kubeconfig", writeKubeconfig(t, mint(t, namespace, account)),
		"--require-pod", n.namespace+"/agent", "--events", "--listen=")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	n.must(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// It ends in any case, and before its output is read.
	stop := func(signal os.Signal) {
		_ = cmd.Process.Signal(signal) // it may have ended before
		select {
		case err := <-ended:
			ended <- err
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			ended <- <-ended
		}
	}
	t.Cleanup(func() { stop(os.Kill) })

	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
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
