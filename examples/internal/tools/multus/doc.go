// SPDX-License-Identifier: Apache-2.0

// Package multus exists for its go.mod, which has Multus' thin plugin as a tool.
package multus
