// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A test in which host-local reserves two addresses, and a pass judges them.
func ExampleNew() {
	_ = func(m *testing.M) { // TestMain of the package: Main removes the binary that Build left
		os.Exit(plugintest.Main(m))
	}
	_ = func(t *testing.T) { // a test
		p := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.10", End: "10.1.0.20"})
		p.NetNS = "/run/netns/cni-d0b5" // need not exist
		lost, err := p.Add(t.Context(), "abc", "eth0")
		fmt.Println(lost, err)
		asked, err := p.Add(t.Context(), "def", "eth0", netip.MustParseAddr("10.1.0.15"))
		fmt.Println(p.File(asked[0]), "in", p.Dir(), err)

		live := podsource.Static{{ContainerIDs: []string{"def"}}}
		reconciler, err := gc.New(hostlocal.New(p.DataDir), []string{p.Network}, live, gc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		report, err := reconciler.Reconcile(t.Context()) // young, so make the files older, or assert gc.NoADDInFlight
		fmt.Println(report.Counts(), err)
		fmt.Println(p.Check(t.Context(), "def", "eth0"), p.Del(t.Context(), "def", "eth0"))
		fmt.Println("run by", p.Binary == plugintest.Build(t), "with", p.Ranges)
	}
}
