// SPDX-License-Identifier: Apache-2.0

// Package kubelet asks the kubelet of this node which pods are live: a
// [podsource.Source] on the Pods API, a gRPC service on a unix socket (KEP-4188).
//
// Kubelet serves it by default since Kubernetes 1.37 (feature gate PodsAPI), for
// root alone. Its answer is complete, or FAILED_PRECONDITION while kubelet does
// not know all its pods yet. It is fresher than what the API server knows, is
// there when the control plane is not, and costs the control plane nothing. On a
// node without it the source's error is [podsource.ErrNotHere], and
// [podsource.Fallback] asks another:
//
//	fromKubelet, err := kubelet.New("", kubelet.Options{})
//	...
//	source := podsource.Fallback(fromKubelet, apiServer)
//
// It knows of no sandbox, so ask the container runtime too:
//
//	source := podsource.Union(fromKubelet, runtime)
//
// Do not use it with the alpha of Kubernetes 1.36, which is off by default: that
// answers before kubelet knows all its pods, and nothing in the answer says so.
//
// # What it cannot see
//
//   - A pod that was deleted by force is gone from its list while the sandbox may
//     still run (hazard 35), and so is a static pod, from the moment its manifest is
//     removed.
//   - Which containers a pod has: it names none, so nothing in its list ends the
//     claim of a pod that is starting (R4).
//   - When a pod came to its end that kubelet rejected: it may have run until a
//     moment ago, so it holds what it names for five minutes from when it was first
//     seen so (hazard 56).
//   - A sandbox in a second network whose addresses are not in the annotation
//     k8s.v1.cni.cncf.io/network-status (hazard 22).
package kubelet
