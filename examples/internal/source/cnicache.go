// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnicache"
)

// openCNICache returns a source that reads libcni's caches.
func openCNICache(_ string, env *Env) (podsource.Source, error) {
	kernel, err := env.kernel()
	if err != nil {
		return nil, err
	}
	return cnicache.New(cnicache.Options{Dirs: env.cacheDirs, Living: kernel.Living})
}

// mergeCaches merges several caches into one with all directories. A cache proves to be the node's
// only if it has the record of every container, in any of its directories.
func mergeCaches(specs []string) (merged, dirs []string) {
	for _, spec := range specs {
		name, dir, _ := strings.Cut(spec, ":")
		if name != "cnicache" || len(alternatives(spec)) > 1 { // alternatives are an error
			merged = append(merged, spec)
			continue
		}
		if dirs = append(dirs, cmp.Or(dir, cnicache.DefaultDir)); len(dirs) == 1 {
			merged = append(merged, name)
		}
	}
	return merged, dirs
}
