// SPDX-License-Identifier: Apache-2.0

// Package mutation holds no code, but the mutation test of the safety rules: it
// takes out one guard at a time and fails unless the test that the guard is
// listed with does.
package mutation
