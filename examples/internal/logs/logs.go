// SPDX-License-Identifier: Apache-2.0

// Package logs writes what programs log, in forms that log collectors read.
package logs

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
)

// The formats.
const (
	Text = "text" // key=value, as logfmt
	JSON = "json"
)

// Formats returns all of them.
func Formats() []string { return []string{Text, JSON} }

// New returns a logger that writes an entry to w for each message up to the level
// verbosity, and for each error, with the time and its zone. Below level 0 it is
// silent. Lines of several goroutines don't mix.
func New(w io.Writer, format string, verbosity int) logr.Logger {
	if verbosity < 0 {
		return logr.Discard()
	}
	opts := &slog.HandlerOptions{Level: slog.Level(-verbosity)}
	if format == JSON {
		return logr.FromSlogHandler(slog.NewJSONHandler(w, opts))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(w, opts))
}
