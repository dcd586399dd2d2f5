// SPDX-License-Identifier: Apache-2.0

// Package cnitest has helpers for tests of CNI programs. [Main] builds programs and runs the tests
// as root in namespaces of their own. [Containers] are network namespaces, and [Runtime] is libcni.
// [Reserve] makes reservations as host-local does. What needs no namespaces is for all systems.
package cnitest
