// SPDX-License-Identifier: Apache-2.0

// Package teeth holds no code, but the proof that the tests of the safety rules
// bite: its test takes out one guard at a time and has them run.
package teeth
