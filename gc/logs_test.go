// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"encoding/json"
	"sync"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// logs collects log lines up to a verbosity.
type logs struct {
	verbosity int
	mu        sync.Mutex
	lines     []map[string]any
}

func newLogs(verbosity int) *logs { return &logs{verbosity: verbosity} }

func (l *logs) logger() logr.Logger {
	return funcr.NewJSON(func(line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var keys map[string]any
		if err := json.Unmarshal([]byte(line), &keys); err != nil {
			keys = map[string]any{"msg": "not JSON: " + line}
		}
		l.lines = append(l.lines, keys)
	}, funcr.Options{Verbosity: l.verbosity})
}

// with returns the number of lines with a message and a key.
func (l *logs) with(msg, key string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if _, ok := line[key]; ok && line["msg"] == msg {
			n++
		}
	}
	return n
}
