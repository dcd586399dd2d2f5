// SPDX-License-Identifier: Apache-2.0

// Package servertest tests podsource/kubelet against kubelet's own server of the Pods API,
// with its own pod and status managers.
//
// It is a module of its own outside go.work: k8s.io/kubernetes has a hundred requirements,
// which would apply to all modules of the workspace. Run it with GOWORK=off.
package kubelet
