// SPDX-License-Identifier: Apache-2.0

package cnitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// OldNode returns a flag of go build, and writes what it needs to a directory. Reconcilers of the
// program then believe that the node has been up for a month, so that reservations may be old however
// young the machine is.
func OldNode(scratch string) (flag string, err error) {
	const pkg = "github.com/hostlocal-gc/hostlocal-gc/gc/internal/uptime"
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		return "", fmt.Errorf("looking for %s: %w", pkg, err)
	}
	file, overlay := filepath.Join(scratch, "uptime.go"), filepath.Join(scratch, "overlay.json")
	code := "package uptime\n\nimport \"time\"\n\nvar begun = time.Now()\n\n" +
		"var Since = func() time.Duration { return 30*24*time.Hour + time.Since(begun) }\n"
	content, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(strings.TrimSpace(string(dir)), "uptime.go"): file}})
	if err != nil {
		return "", err
	}
	return "-overlay=" + overlay, errors.Join(os.WriteFile(file, []byte(code), 0o600), os.WriteFile(overlay, content, 0o600))
}
