// SPDX-License-Identifier: Apache-2.0

// Package kubelet tests podsource/kubelet against kubelet's own server of the Pods API, with
// kubelet's pod and status managers. It has tests only:
//
//	cd examples/e2e; GOWORK=off go test ./kubelet
package kubelet
