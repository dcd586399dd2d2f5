// SPDX-License-Identifier: Apache-2.0

// Package flannel exists for its go.mod, which has flannel's CNI plugin as a tool, in the last
// version that was published with the other plugins.
package flannel
