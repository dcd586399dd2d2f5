// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// An incident that can't be reproduced, here without root, is skipped and writes no row: a partial row
// would be taken for a result.
func TestSkippedIncidentHasNoRow(t *testing.T) {
	need(t)
	const nobody = 65534
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	row := filepath.Join(dir, "row.json")
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestIncident_k3s5885$", "-test.v")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "CI=") })
	cmd.Env = append(cmd.Env, roleEnv+"=", incidentEnv+"="+row)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- SKIP: TestIncident_k3s5885") {
		t.Errorf("%v: %v, want a skip:\n%s", cmd, err, out)
	}
	if text, err := os.ReadFile(row); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got the row %s, %v, want none", text, err)
	}
}
