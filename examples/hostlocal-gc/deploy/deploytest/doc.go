// SPDX-License-Identifier: Apache-2.0

// Package deploytest has the tests of the manifests in the directory above it:
// that they build with kustomize, that they are what the cluster's types say,
// that the agent gets no right and no path without a reason, that each query of
// alerts and dashboard means a metric that exists, and that alerts fire when they
// should.
//
// The manifests are a module of their own, as Prometheus and kustomize are needed
// for that. The module's root is with the manifests, so that go test sees when
// one of them has changed, and does not answer from its cache.
package deploytest
