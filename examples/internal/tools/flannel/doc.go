// SPDX-License-Identifier: Apache-2.0

// Package flannel is there for its go.mod, which has flannel's CNI plugin as a tool, of
// the last version that was kept with the other plugins.
package flannel
