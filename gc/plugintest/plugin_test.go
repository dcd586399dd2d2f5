// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"debug/buildinfo"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// The tests must run the version that the library is built with.
func TestVersionIsTheRootModules(t *testing.T) {
	info, err := buildinfo.ReadFile(plugintest.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Path}} {{.Version}} {{.Replace}}", "github.com/containernetworking/plugins")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("reading the version in the root's go.mod: %v", err)
	}
	if info.Main.Replace != nil {
		t.Errorf("the plugin is built from a replacement, %s", info.Main.Replace.Path)
	}
	wantDiff(t, "module of the binary", "it must be the one in the root's go.mod",
		strings.TrimSpace(string(out)), info.Main.Path+" "+info.Main.Version+" <nil>")
}

// The library reads what the plugin wrote, and DEL removes what ADD made.
func TestAddCheckDel(t *testing.T) {
	type owner struct{ id, ifName string }
	p := plugintest.New(t, "podnet", six4, six6)
	want := make(map[string]owner)
	all := []struct {
		reason string
		owner
	}{
		{"containerd and CRI-O: 64 digits", owner{containerID(7), "eth0"}},
		{"a second interface of the same: it is part of the key", owner{containerID(7), "net1"}},
		{"a prefix, as from nerdctl", owner{"default-0a1b2c3d4e5f", "eth0"}},
		{"cnitool", owner{"cnitool-77383ca0a1715733ca6f", "eth0"}},
		{"a PID", owner{"12345", "eth0"}},
		{"all that CNI allows in an ID, and the longest name of an interface", owner{"A.b_c-d", "a.b@c-15-chars."}},
	}
	check := func(reason string) {
		t.Helper()
		list, err := hostlocal.New(p.DataDir).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]owner)
		for _, r := range list.Reservations {
			got[r.IP.String()] = owner{r.ContainerID, r.IfName}
			info, err := os.Stat(p.File(r.IP))
			if err != nil || r.Owner != hostlocal.Owned || !r.ReservedAt.Equal(info.ModTime()) {
				t.Errorf("%s is %s, reserved at %v; its file: %v, %v", r.IP, r.Owner, r.ReservedAt, info, err)
			}
		}
		if !maps.Equal(want, got) || len(reservations(t, p)) != len(want) {
			t.Errorf("%s: got reservations %v, want %v", reason, got, want)
		}
	}
	for _, a := range all {
		for _, ip := range add(t, p, a.id, a.ifName) {
			want[ip.String()] = a.owner
		}
		check(a.reason)
		_, err := p.Add(t.Context(), a.id, a.ifName)
		wantError(t, err, "duplicate allocation is not allowed", "an attachment can't be added twice")
	}
	for _, a := range all {
		if err := p.Check(t.Context(), a.id, a.ifName); err != nil {
			t.Error(err)
		}
		maps.DeleteFunc(want, func(_ string, of owner) bool { return of == a.owner })
		for range 2 { // the second has nothing to delete
			if err := p.Del(t.Context(), a.id, a.ifName); err != nil {
				t.Fatal(err)
			}
			check(a.reason)
		}
		wantError(t, p.Check(t.Context(), a.id, a.ifName), "Failed to find address", "it was deleted")
	}
}
