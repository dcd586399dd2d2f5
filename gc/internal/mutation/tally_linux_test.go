// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// eachPackage calls f with each package of a comma-separated list. It prints the lines of
// figures that f returns, and writes them to a file for .ci/deep.
func eachPackage(t *testing.T, dirs, name string, f func(t *testing.T, dir string) string) {
	t.Helper()
	if dirs == "" {
		return
	}
	var figures strings.Builder
	for _, dir := range strings.Split(dirs, ",") {
		t.Run(dir, func(t *testing.T) { figures.WriteString(f(t, dir)) })
	}
	fmt.Print(figures.String())
	if path := os.Getenv("HOSTLOCAL_GC_FIGURES"); path != "" {
		if err := os.WriteFile(path+"."+name, []byte(figures.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A tally counts the changes of one package. It fails the test for a change that is neither
// found nor named, or both.
type tally struct {
	t     *testing.T
	dir   string
	named map[string]string

	mu                        sync.Mutex
	all, found, ok, survivors int
}

// add counts a change. how says why it is not found.
func (y *tally) add(key, at string, found bool, how string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.all++
	_, isNamed := y.named[key]
	switch {
	case found && isNamed:
		y.t.Errorf("%s names a change with which a test fails; remove it: %s: %s", namedFile, y.dir, key)
	case found:
		y.found++
	case isNamed:
		y.ok++
	default:
		y.survivors++
		y.t.Errorf("%s: %s\n%s: %s", at, how, y.dir, key)
	}
	if y.all%100 == 0 {
		y.t.Logf("%d done", y.all)
	}
}

// line returns the line of figures. what names the changes, in the plural.
func (y *tally) line(what, end string) string {
	return fmt.Sprintf("%s: %d %s, %d found, %d named, %d survived%s\n", y.dir, y.all, what, y.found, y.ok, y.survivors, end)
}
