// SPDX-License-Identifier: Apache-2.0

// Package kube is a pod source that asks a Kubernetes API server, or an informer
// that the agent has already.
//
//	source := kube.New(clientset.CoreV1(), nodeName, kube.Options{})
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
// # What it can't see
//
// The API forgets a pod that was deleted by force while its sandbox still runs
// (hazard 35), and never knew the addresses of a second network unless they are
// in the annotation k8s.v1.cni.cncf.io/network-status. It has no container IDs,
// so nothing in its list ends the claim of a pod that is starting (R4). Unite it
// with a source that asks the container runtime. Which pods count as live, and for how long
// after they finished, is said in
// [github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod].
//
// # The right node
//
// A wrong node name gives a list that is whole and of other pods. So before each
// list the Node object is read, and its status.nodeInfo.bootID must be that of
// the kernel that this process runs on (hazard 23). It shows another machine's
// name, as well as a Node object that kubelet has not brought up to date since
// the machine was booted or took over the name of another. See
// [Options.BootID] and [Options.SkipNodeCheck]. Nodes that share a kernel, as
// those of kind do, share its boot ID: there only podsource.Require tells one
// from the other.
package kube
