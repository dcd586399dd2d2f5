// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The tests use the version of the plugins whose lock and file format the library uses.
func TestPluginsAreTheRootModules(t *testing.T) {
	const plugins = `(?m)github\.com/containernetworking/plugins `
	version := func(file, pattern string) string {
		content, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindSubmatch(content)
		if m == nil {
			t.Fatalf("%s does not name the plugins", file)
		}
		return string(m[1])
	}
	same(t, "version of the plugins", "go.mod replaces the one that containerd requires",
		version(top+"/go.mod", plugins+`(v\S+)$`), version("../go.mod", plugins+`=> \S+ (v\S+)$`))
}
