// SPDX-License-Identifier: Apache-2.0

// Package deploytest tests the manifests in the directory above it. They build with kustomize and
// are valid for the types of each later version of Kubernetes. Each right and each path of the
// agent has a reason. Queries of alerts and of the dashboard refer to existing metrics. Alerts fire
// and end when they should. The image's build makes the command.
//
// The manifests are a module of their own, since the tests need Prometheus, kustomize and
// BuildKit's parser. The module's root is the manifests' directory, so that a change of a manifest
// invalidates go test's cache.
package deploy
