// SPDX-License-Identifier: Apache-2.0

// Package refuse makes the kernel refuse a system call to a test.
package refuse
