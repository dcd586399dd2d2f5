// SPDX-License-Identifier: Apache-2.0

package incidents

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run runs the incident that the test is named after: the test of that name in suite, which makes
// the namespaces and cleans up. It prints that test's output as it comes, and compares the row with
// the table's. All processes end with this one.
func run(t *testing.T, tools ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "row.json")
	cmd := exec.Command("go", "test", "-count=1", "-timeout=25m", "-v", "-run=^"+t.Name()+"$", ".")
	cmd.Dir = suite
	cmd.Env = append(os.Environ(), "GOWORK=off", "CONTAINERDTEST_INCIDENT="+file, "CONTAINERDTEST_TOOLS="+strings.Join(tools, " "),
		fmt.Sprint("CONTAINERDTEST_CALLER=", os.Getpid()))
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v in %s: %v", cmd, suite, err)
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatal("the incident was not reproduced: what was said above has the reason")
	}
	if err != nil {
		t.Fatal(err)
	}
	var found incident
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&found); err != nil {
		t.Fatalf("reading the row %s: %v", text, err)
	}
	if want := "TestIncident_" + found.name(); t.Name() != want {
		t.Errorf("the incident's first issue is %s, so its test is to be %s", found.Issues[0], want)
	}
	compare(t, found)
}
