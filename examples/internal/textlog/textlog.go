// SPDX-License-Identifier: Apache-2.0

// Package textlog writes what programs log as lines of text.
package textlog

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// New returns a logger that writes a line to w for each entry up to the level
// verbosity, and for each error. Below level 0 it is silent. Lines of several
// goroutines don't mix.
func New(w io.Writer, verbosity int) logr.Logger {
	if verbosity < 0 {
		return logr.Discard()
	}
	var mu sync.Mutex // guards w
	return funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(w, strings.TrimSpace(prefix+" "+args))
	}, funcr.Options{Verbosity: verbosity, LogTimestamp: true})
}
