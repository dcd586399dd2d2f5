// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"debug/buildinfo"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

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
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("reading the version in the root's go.mod: %v", err)
	}
	got := info.Main.Path + " " + info.Main.Version + " <nil>"
	if info.Main.Replace != nil {
		t.Errorf("the plugin is built from a replacement, %s", info.Main.Replace.Path)
	}
	wantDiff(t, "module of the binary", "it must be the one in the root's go.mod", strings.TrimSpace(string(out)), got)
}

func TestAddCheckDel(t *testing.T) {
	const id = "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9"
	for _, row := range []struct {
		name   string
		reason string
		ranges []plugintest.Range
		first  map[string]string // of eth0
		second map[string]string // of net1, which the same container gets next
	}{
		{
			name: "single stack", reason: "one file, with CRLF and no newline at its end",
			ranges: []plugintest.Range{six4},
			first:  map[string]string{"10.1.0.2": id + "\r\neth0"},
			second: map[string]string{"10.1.0.3": id + "\r\nnet1"},
		},
		{
			name: "IPv6 alone", reason: "the name is the canonical address",
			ranges: []plugintest.Range{six6},
			first:  map[string]string{"fd00:1::2": id + "\r\neth0"},
			second: map[string]string{"fd00:1::3": id + "\r\nnet1"},
		},
		{
			name: "dual stack", reason: "two files of one owner",
			ranges: []plugintest.Range{six4, six6},
			first:  map[string]string{"10.1.0.2": id + "\r\neth0", "fd00:1::2": id + "\r\neth0"},
			second: map[string]string{"10.1.0.3": id + "\r\nnet1", "fd00:1::3": id + "\r\nnet1"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := plugintest.New(t, "podnet", row.ranges...)
			want := make(map[string]string)
			join := func(m map[string]string) {
				for ip, owner := range m {
					want[name(netip.MustParseAddr(ip))] = owner
				}
			}
			if err := p.Del(t.Context(), id, "eth0"); err != nil {
				t.Errorf("DEL before any ADD: %v", err)
			}
			wantError(t, p.Check(t.Context(), id, "eth0"), "Failed to find address", "nothing was added")

			join(row.first)
			for _, ip := range add(t, p, id, "eth0") {
				if _, ok := row.first[ip.String()]; !ok {
					t.Errorf("ADD gave %s, want those of %v", ip, row.first)
				}
			}
			wantDiff(t, "after ADD", row.reason, want, reservations(t, p))
			_, err := p.Add(t.Context(), id, "eth0")
			wantError(t, err, "duplicate allocation is not allowed", "an attachment can't be added twice")
			wantDiff(t, "after the second ADD", "it failed", want, reservations(t, p))

			join(row.second)
			add(t, p, id, "net1")
			wantDiff(t, "after ADD of a second interface", "the interface is part of the key", want, reservations(t, p))
			for _, ifName := range []string{"eth0", "net1"} {
				if err := p.Check(t.Context(), id, ifName); err != nil {
					t.Error(err)
				}
			}

			for range 2 {
				if err := p.Del(t.Context(), id, "eth0"); err != nil {
					t.Fatal(err)
				}
				clear(want)
				join(row.second)
				wantDiff(t, "after DEL", "it removes the files of its own interface, and is idempotent", want, reservations(t, p))
				wantError(t, p.Check(t.Context(), id, "eth0"), "Failed to find address", "it was deleted")
			}
		})
	}
}

// The error of a plugin that fails has the plugin's message, not only its exit code.
func TestErrorsAreThePlugins(t *testing.T) {
	p := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.1/24"})
	_, err := p.Add(t.Context(), "abc", "eth0")
	wantError(t, err, "Network has host bits set", "the subnet is no network address")
	p.Network = "../etc"
	_, err = p.Add(t.Context(), "abc", "eth0")
	wantError(t, err, "invalid characters", "the name would lead out of the data dir")
	wantDiff(t, "data dir", "nothing was written", 0, len(files(t, &plugintest.Plugin{DataDir: p.DataDir, Network: "."})))
}

func TestListReadsWhatThePluginWrote(t *testing.T) {
	type row struct {
		IP, ContainerID, IfName string
		Owner                   hostlocal.OwnerState
		ReservedAt              time.Time
	}
	p := plugintest.New(t, "podnet", six4, six6)
	var want4, want6 []row // IPv4 sorts before IPv6
	for _, a := range []struct{ id, ifName, reason string }{
		{"0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9", "eth0", "containerd and CRI-O: 64 digits"},
		{"0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9", "net1", "a second interface of the same"},
		{"default-0a1b2c3d4e5f", "eth0", "a prefix, as from nerdctl"},
		{"cnitool-77383ca0a1715733ca6f", "eth0", "cnitool"},
		{"12345", "eth0", "a PID"},
		{"A.b_c-d", "a.b@c-15-chars.", "all that CNI allows in an ID, and the longest name of an interface"},
	} {
		ips := add(t, p, a.id, a.ifName)
		for i, want := range []*[]row{&want4, &want6} {
			info, err := os.Stat(p.File(ips[i]))
			if err != nil {
				t.Fatalf("%s: %v", a.reason, err)
			}
			*want = append(*want, row{ips[i].String(), a.id, a.ifName, hostlocal.Owned, info.ModTime()})
		}
	}
	rs, err := hostlocal.New(p.DataDir).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []row
	for _, r := range rs {
		got = append(got, row{r.IP.String(), r.ContainerID, r.IfName, r.Owner, r.ReservedAt})
	}
	wantDiff(t, "list", "owner and interface are those of the ADDs", append(want4, want6...), got)
}
