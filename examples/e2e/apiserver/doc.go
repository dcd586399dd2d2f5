// SPDX-License-Identifier: Apache-2.0

// Package servertest runs podsource/kube against a real kube-apiserver and a
// real etcd. It has tests only, and they need Linux. From this directory:
//
//	GOWORK=off go test -race -timeout 30m .
//
// The first run builds both servers from source, which takes minutes; after that
// they are in Go's build cache. They run as child processes, on sockets in a
// temporary directory and on one port of 127.0.0.1, and stop with the tests.
//
// It is a module of its own outside the workspace. In the workspace the hundreds of modules
// that the servers require would determine the versions of all its modules.
package apiserver
