// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/go-logr/logr"

	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/logs"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
)

// logger logs to stderr, up to the level of -v. Below level 0 only the report says what was done.
func (a *app) logger() logr.Logger { return logs.New(a.stderr, a.flags.logFormat, a.flags.verbose) }

// note prints a note to stderr: stdout may go to a pipe.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.stderr, term.Clean("hostlocal-gc: note: "+fmt.Sprintf(format, args...)))
}
