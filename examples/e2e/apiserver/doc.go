// SPDX-License-Identifier: Apache-2.0

// Package apiserver has tests of podsource/kube and the agent's manifests on a real kube-apiserver
// and etcd. They need Linux and the go command:
//
//	cd examples/e2e; GOWORK=off go test ./apiserver
//
// The first run builds both servers, which takes minutes; after that they are in Go's build cache.
package apiserver
