// SPDX-License-Identifier: Apache-2.0

// Package uptime is where package gc learns how long the node has been up, and where tests
// replace it.
package uptime

import "github.com/hostlocal-gc/hostlocal-gc/podsource/boottime"

// Since returns how long the node has been up.
var Since = boottime.Since
