// SPDX-License-Identifier: Apache-2.0

// Package servertest holds tests of podsource/kubelet against the server of the
// Pods API that is in kubelet itself, with kubelet's own pod and status managers.
//
// It is a module that is kept out of go.work: k8s.io/kubernetes has a hundred
// requirements, which would be everybody's there. Run it with GOWORK=off.
package servertest
