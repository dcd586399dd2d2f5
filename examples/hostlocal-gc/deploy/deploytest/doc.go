// SPDX-License-Identifier: Apache-2.0

// Package deploytest has the tests of the manifests in the directory above it:
// that they build with kustomize, that they are what the cluster's types say in each
// later version, that the agent gets no right and no path without a reason, that each
// query of alerts and dashboard means a metric that exists, that alerts fire and fall
// silent when they should, and that the image's build makes the command.
//
// The manifests are a module of their own, as Prometheus, kustomize and BuildKit's parser
// are needed for that. The module's root is with the manifests, so that go test sees when
// one of them has changed, and does not answer from its cache.
package deploytest
