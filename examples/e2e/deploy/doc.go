// SPDX-License-Identifier: Apache-2.0

// Package deploy tests the manifests of examples/hostlocal-gc/deploy: what kustomize builds from them, when the alerts
// fire, what the dashboard shows, and whether the Dockerfile builds the command. At the top of the repository:
//
//	cd examples/e2e; GOWORK=off go test ./deploy
package deploy
