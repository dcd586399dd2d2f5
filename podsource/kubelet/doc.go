// SPDX-License-Identifier: Apache-2.0

// Package kubelet is a pod source that asks the kubelet of this node: a
// [podsource.Source] on the Pods API, a gRPC service on a unix socket (KEP-4188).
//
// Kubelet serves it by default since Kubernetes 1.37 (feature gate PodsAPI), to root
// only. Its answer is complete, or FAILED_PRECONDITION while kubelet does not know all its
// pods yet. It is fresher than what the API server knows, does not need the control plane,
// and costs it nothing. On a node without it the source's error is
// [podsource.ErrNotHere], so that [podsource.Fallback] uses another source:
//
//	fromKubelet, err := kubelet.New("")
//	...
//	source := podsource.Fallback(fromKubelet, apiServer)
//
// It knows no sandboxes, so combine it with the container runtime:
//
//	source := podsource.Union(fromKubelet, runtime)
//
// Do not use it with the alpha version of Kubernetes 1.36, which is off by default: that
// version answers before kubelet knows all its pods, and the answer does not say so.
//
// # What it cannot see
//
//   - What the object of a pod does not show: see package [kubepod].
//   - A static pod whose manifest was removed, while its sandbox may still run.
package kubelet
