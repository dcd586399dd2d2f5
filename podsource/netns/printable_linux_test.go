// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// A tenant's command name or mount point can't forge or flood the report (hazards 78
// and 79).
//
// Guard: [printable] cuts and quotes names.
func TestHazard78NamesInReports(t *testing.T) {
	if !onNode(t) {
		return
	}
	const name = "x)\nof 1 (init"
	if err := os.Symlink("/bin/sleep", "/run/"+name); err != nil {
		t.Fatal(err)
	}
	pid, err := syscall.ForkExec("/run/"+name, []string{"sleep", "60"}, &syscall.ProcAttr{
		Env: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=ee3b0f0c"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	point := "/run/netns/x, of process 1\n" + strings.Repeat("y", 200)
	mountNamespace(t, point, "10.0.0.2")
	all, err := nested(t).Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	adds, addresses := parts(t, all)
	if len(adds.Pods) != 1 || len(addresses.Pods) != 1 {
		t.Fatalf("got %+v", all)
	}
	if got, want := adds.Pods[0].Origin, fmt.Sprintf(`CNI ADD by process %d ("x)\nof 1 (init")`, pid); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	_, got, _ := strings.Cut(addresses.Pods[0].Origin, ", ")
	if want := `mounted at "/run/netns/x, of process 1\n` + strings.Repeat("y", maxPrintable-27) + `"..., without a process`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPrintable(t *testing.T) {
	for _, row := range []struct{ reason, text, want string }{
		{"nothing", "", `""`},
		{"all that is not plain", "a\x1b[2J\n\"b)\u202e\xff", `"a\x1b[2J\n\"b)\u202e\xff"`},
		{"the longest that is not cut", strings.Repeat("a", maxPrintable), `"` + strings.Repeat("a", maxPrintable) + `"`},
		{"cut within a character", strings.Repeat("a", maxPrintable-1) + "ä", `"` + strings.Repeat("a", maxPrintable-1) + `\xc3"...`},
	} {
		if got := printable(row.text); got != row.want {
			t.Errorf("got %s, want %s: %s", got, row.want, row.reason)
		}
	}
}
