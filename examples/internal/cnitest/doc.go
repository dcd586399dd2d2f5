// SPDX-License-Identifier: Apache-2.0

// Package cnitest is what tests of CNI programs share: [Main], which builds what
// they call and runs them as root in namespaces of their own; containers, which are
// network namespaces ([Containers]); libcni as the runtime ([Runtime], [IPs]); and
// reservations as host-local makes them ([Reserve]). All but this comment is for
// Linux.
package cnitest
