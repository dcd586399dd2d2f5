// SPDX-License-Identifier: Apache-2.0

// Package logs writes logs in formats that log collectors read.
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

// Formats returns all formats.
func Formats() []string { return []string{Text, JSON} }

// New returns a logger that writes to w each message up to the level verbosity, and each error,
// with the time and its zone. Below level 0 it writes nothing. It may be used concurrently.
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
