// SPDX-License-Identifier: Apache-2.0

package podfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubejson "k8s.io/apimachinery/pkg/util/json"
	sigsjson "sigs.k8s.io/json"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod"
)

// decodePrinted decodes the output of `kubectl get pods -A -o json` or `crictl pods -o json`: an
// object with items, and a kind if kubectl printed it.
func decodePrinted(text []byte, node func() (string, error)) (podsource.Answer, error) {
	list, err := object(text)
	if err != nil {
		return podsource.Answer{}, err
	}
	var items []json.RawMessage
	if err := json.Unmarshal(list["items"], &items); err != nil || items == nil {
		return podsource.Answer{}, errors.New("it must be an array of pods, or what `kubectl get pods -A -o json` or `crictl pods -o json` prints: " +
			"it is an object, and has no array of items")
	}
	if kind, ok := list["kind"]; ok {
		return kubectlAnswer(string(kind), list["metadata"], items, node)
	}
	return crictlAnswer(items)
}

// crictlAnswer is the answer of package cri at the time when crictl ran: the ID of every sandbox in
// any state.
//
// If all sandboxes are of one namespace, others may have been filtered out. Then the answer only
// adds reasons to keep.
func crictlAnswer(items []json.RawMessage) (podsource.Answer, error) {
	a := podsource.Answer{Pods: make([]podsource.Pod, len(items)), Networks: every, Names: podsource.SandboxContainers}
	namespaces := make(map[string]bool)
	for i, item := range items {
		var sandbox struct {
			ID       string `json:"id"`
			Metadata struct{ Namespace, Name, UID string }
		}
		if err := json.Unmarshal(item, &sandbox); err != nil {
			return podsource.Answer{}, fmt.Errorf("sandbox %d: %w", i+1, err)
		}
		if sandbox.ID == "" {
			return podsource.Answer{}, fmt.Errorf("sandbox %d has no id", i+1)
		}
		a.Pods[i] = podsource.Pod{
			NamespacedName: types.NamespacedName{Namespace: sandbox.Metadata.Namespace, Name: sandbox.Metadata.Name},
			UID:            types.UID(sandbox.Metadata.UID),
			ContainerIDs:   []string{sandbox.ID},
		}
		namespaces[sandbox.Metadata.Namespace] = true
	}
	if len(namespaces) == 1 {
		a.Networks, a.Names, a.Supplementary = nil, podsource.KubernetesPods, true
		a.Note = fmt.Sprintf("all sandboxes are of namespace %s: without those of others (crictl pods, without --namespace) the list only keeps, and lets nothing go", a.Pods[0].Namespace)
	}
	return a, nil
}

// kubectlAnswer is the answer of package kube at the time when kubectl ran, but without a check
// that the Node is this machine. Pods of other nodes and without a node don't count.
//
// If all pods are of one namespace, others may have been filtered out. Then the answer only adds
// reasons to keep.
func kubectlAnswer(kind string, metadata json.RawMessage, items []json.RawMessage, nodeName func() (string, error)) (podsource.Answer, error) {
	if kind != `"List"` && kind != `"PodList"` {
		return podsource.Answer{}, fmt.Errorf("its kind is %s; it must be a List of pods", kind)
	}
	var page struct{ Continue string }
	if err := json.Unmarshal(metadata, &page); err != nil && metadata != nil {
		return podsource.Answer{}, fmt.Errorf("its metadata: %w", err)
	}
	if page.Continue != "" {
		return podsource.Answer{}, errors.New("it is one page of a longer list")
	}
	node, err := nodeName()
	if err != nil {
		return podsource.Answer{}, err
	}
	a := podsource.Answer{Networks: every}
	namespaces, nodes := make(map[string]bool), make(map[string]bool)
	for i, item := range items {
		var pod corev1.Pod
		if err := kubejson.Unmarshal(item, &pod); err != nil {
			return podsource.Answer{}, fmt.Errorf("item %d: %w", i+1, err)
		}
		if pod.Kind != "Pod" && (pod.Kind != "" || kind == `"List"`) {
			return podsource.Answer{}, fmt.Errorf("item %d is a %q, and not a Pod", i+1, pod.Kind)
		}
		namespaces[pod.Namespace], nodes[pod.Spec.NodeName] = true, true
		if pod.Spec.NodeName != node {
			continue
		}
		if pod.Name == "" || pod.UID == "" {
			return podsource.Answer{}, fmt.Errorf("item %d: it has the name %q and the UID %q, and must have both", i+1, pod.Name, pod.UID)
		}
		a.Pods = append(a.Pods, kubepod.Convert(&pod))
	}
	if len(a.Pods) == 0 {
		delete(nodes, "")
		return podsource.Answer{}, fmt.Errorf("none of its %d pods is on node %s, but on %q; is that the node's name? set NODE_NAME if not",
			len(items), node, slices.Sorted(maps.Keys(nodes)))
	}
	a.Note = kubepod.Note(a.Pods)
	if len(namespaces) == 1 {
		a.Networks, a.Supplementary = nil, true
		a.Note = fmt.Sprintf("all pods are of namespace %s, so the list only keeps, and lets nothing go: without -A kubectl prints no others, and with -A leave out --field-selector (the pods of this node are picked here)", a.Pods[0].Namespace)
	}
	return a, nil
}

// object returns the fields of one JSON object. Text after the object is an error, and so is a
// repeated field, since it is not clear which one is meant.
func object(text []byte) (fields map[string]json.RawMessage, err error) {
	wrong, err := sigsjson.UnmarshalStrict(text, &fields)
	return fields, errors.Join(append(wrong, err)...)
}
