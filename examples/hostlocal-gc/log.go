// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// logger writes lines of text to stderr, up to the level that -v gives. Below
// level 0 the report alone says what was done.
func (a *app) logger() logr.Logger {
	if a.flags.verbose < 0 {
		return logr.Discard()
	}
	return funcr.New(func(prefix, args string) {
		fmt.Fprintln(a.stderr, strings.TrimSpace(prefix+" "+args))
	}, funcr.Options{Verbosity: a.flags.verbose, LogTimestamp: true})
}

// note tells the user something beside the output, which may go to a pipe.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, "hostlocal-gc: note: "+format+"\n", args...)
}
