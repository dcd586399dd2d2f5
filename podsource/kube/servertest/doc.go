// SPDX-License-Identifier: Apache-2.0

// Package servertest runs podsource/kube against a real kube-apiserver and a
// real etcd. It has tests only, and they need Linux. From this directory:
//
//	GOWORK=off go test -race -timeout 30m .
//
// The first run builds both servers from source, which takes minutes; after that
// they are in Go's build cache. They run as child processes, on sockets in a
// temporary directory and on one port of 127.0.0.1, and end with the tests.
//
// It is a module of its own, and not in the workspace, because the hundreds of
// modules that the servers require would otherwise decide the versions of
// everybody's. Where HOSTLOCAL_GC_FIGURES is set, what passes cost the API server
// is appended to the file of that name with ".kube" behind it.
package servertest
