// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/logs"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// logger logs to stderr, up to the level that -v gives. Below level 0 the report alone
// says what was done.
func (a *app) logger() logr.Logger { return logs.New(a.stderr, a.flags.logFormat, a.flags.verbose) }

// note tells the user something beside the output, which may go to a pipe.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.stderr, term.Clean("hostlocal-gc: note: "+fmt.Sprintf(format, args...)))
}
