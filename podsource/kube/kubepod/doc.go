// SPDX-License-Identifier: Apache-2.0

// Package kubepod makes a [podsource.Pod] of a Kubernetes pod: [Convert] is the
// one place that says what of a pod's object counts as a claim on an address.
//
// It is for whoever has pods already, from a client, an informer or kubelet. It
// needs the types of the Kubernetes API and no client.
package kubepod
