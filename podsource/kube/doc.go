// SPDX-License-Identifier: Apache-2.0

// Package kube is a pod source that asks a Kubernetes API server, or an informer.
//
//	source, err := kube.New(clientset.CoreV1(), nodeName, kube.Options{})
//
// A pass gets one Node and lists the pods of this node (spec.nodeName), in pages, in their
// current state. There is no watch and no cache, and a list from which items are missing is an
// error. The account needs two permissions, both for the whole cluster:
//
//	rules:
//	- apiGroups: [""]
//	  resources: ["nodes"]
//	  verbs: ["get"]
//	- apiGroups: [""]
//	  resources: ["pods"]
//	  verbs: ["list"]
//
// Kubelet's own account has them for its node.
//
// An agent that already has an informer of pods gives it to [FromLister] instead.
//
// Combine it with a source that asks the container runtime, which knows the sandboxes.
// Package [kubepod] says which pods count as live, and for how long after they finished.
//
// # The right node
//
// With a wrong node name the list is complete, but of other pods. So the source reads the
// Node object before each list. Its status.nodeInfo.bootID must be that of the kernel that
// this process runs on (hazard 23). This detects the name of another machine, and a Node
// object that kubelet has not updated since the machine booted or took over the name of
// another one. The Node's condition Ready must not be Unknown: then the control plane gets
// no status from kubelet, and what it knows about the pods is old (hazard 55). See
// Options.BootID and Options.SkipNodeCheck.
//
// # What it cannot see
//
//   - What the object of a pod does not show: see package [kubepod].
//   - Pods that kubelet has not reported to the API server. A kubelet that can't reach it
//     is noticed after some 40 seconds, and not at all where no controller manager runs
//     (hazard 55).
//   - That an informer given to [FromLister] is filtered (hazard 54).
//   - Which node this is among nodes that share a kernel, and so its boot ID, as those of
//     kind do: only [podsource.Require] distinguishes them (hazard 23).
package kube
