// SPDX-License-Identifier: Apache-2.0

// Package kube is a pod source that asks a Kubernetes API server, or an informer.
//
//	source, err := kube.New(clientset.CoreV1(), nodeName, kube.Options{})
//
// A pass asks for one Node and one list of pods: of this node only
// (spec.nodeName), in pages, and as they are now. There is no watch and no cache
// of its own. Its account needs two permissions, both for the whole cluster:
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
// [NewInformer] makes a source that watches its node's pods, and needs the verb
// watch on pods besides. [FromLister] takes an informer that the agent has already.
//
// Unite it with a source that asks the container runtime, which knows of the
// sandboxes. Which pods count as live, and for how long after they finished, is
// said in
// [github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod].
//
// # The right node
//
// A wrong node name gives a list that is whole and of other pods. So before each
// list the Node object is read, and its status.nodeInfo.bootID must be that of
// the kernel that this process runs on (hazard 23). It shows another machine's
// name, as well as a Node object that kubelet has not brought up to date since
// the machine was booted or took over the name of another. The Node's condition
// Ready must not be Unknown either: then the control plane hears nothing of its
// kubelet, and what it knows of the pods is old (hazard 55). See
// [Options.BootID] and [Options.SkipNodeCheck].
//
// # What it cannot see
//
//   - A pod that was deleted by force, while its sandbox still runs (hazard 35).
//   - Which containers a pod has: it names none, so nothing in its list ends the
//     claim of a pod that is starting (R4).
//   - A sandbox in a second network whose addresses are not in the annotation
//     k8s.v1.cni.cncf.io/network-status (hazard 22).
//   - Pods of which kubelet has not told the API server: for some 40 seconds, and
//     longer where no controller manager runs, a kubelet that can't be heard passes
//     for one that is (hazard 55).
//   - That an informer given to [FromLister] is filtered (hazard 54). [NewInformer]
//     makes one that is not.
//   - Nodes that share a kernel, as those of kind do, share its boot ID: there only
//     [podsource.Require] tells one from the other (hazard 23).
package kube
