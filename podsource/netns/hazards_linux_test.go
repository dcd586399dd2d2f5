// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// reserve writes reservations that are an hour old, as host-local does.
func reserve(t *testing.T, owners map[string]string) *hostlocal.Store {
	t.Helper()
	data := t.TempDir()
	store, err := hostlocal.New(data, "podnet")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(data, "podnet"), 0o755); err != nil {
		t.Fatal(err)
	}
	for ip, owner := range owners {
		path := filepath.Join(data, "podnet", ip)
		if err := os.WriteFile(path, []byte(owner+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

// pass fails unless a pass gives these verdicts, and the folder is as they say.
func pass(t *testing.T, store *hostlocal.Store, s podsource.Source, want map[string]gc.Verdict) {
	t.Helper()
	report, err := gc.New(store, s, gc.Options{}).Reconcile(t.Context())
	if err != nil {
		t.Errorf("the pass: %v", err)
	}
	got := make(map[string]gc.Verdict)
	for _, e := range report.Reservations {
		got[e.IP.String()] = e.Verdict
		_, err := os.Lstat(filepath.Join(store.DataDir(), "podnet", e.IP.String()))
		if (err == nil) != (e.Verdict != gc.Released) {
			t.Errorf("%s was judged %s, and its file: %v", e.IP, e.Verdict, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// The runtime lists one sandbox, with its name and its address, as the cri
// source gives it.
var runtimeLists = podsource.Static{{
	NamespacedName: types.NamespacedName{Namespace: "default", Name: "db"}, UID: "db", ContainerIDs: []string{"listed"},
}}

// The runtime lost a sandbox's record, and the sandbox lives on. The kernel's
// word keeps all that it holds, and is no conflict with what the runtime says of
// the sandboxes that it lists.
func TestHazard33RecordLost(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{
		"10.0.0.2": "lost", "fd00::2": "lost", "10.0.0.3": "listed", "10.0.0.4": "leaked", "10.0.0.5": "named",
	})
	_, stop := startPod(t, "10.0.0.2", "fd00::2")
	startPod(t, "10.0.0.3")
	mountNamespace(t, "/run/netns/named", "10.0.0.5")
	both := podsource.Union(runtimeLists, nested(t))
	pass(t, store, both, map[string]gc.Verdict{
		"10.0.0.2": gc.InUse, "fd00::2": gc.InUse, "10.0.0.3": gc.InUse, "10.0.0.4": gc.Released, "10.0.0.5": gc.InUse,
	})
	stop()
	pass(t, store, both, map[string]gc.Verdict{
		"10.0.0.2": gc.Released, "fd00::2": gc.Released, "10.0.0.3": gc.InUse, "10.0.0.5": gc.InUse,
	})
	unmount(t, "/run/netns/named")
	pass(t, store, both, map[string]gc.Verdict{"10.0.0.3": gc.InUse, "10.0.0.5": gc.Released})
}

// Neither the API nor kubelet knows the pod any more, and its address is up.
func TestHazard35DeletedByForce(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": "forced", "fd00::2": "forced", "10.0.0.4": "leaked"})
	_, stop := startPod(t, "10.0.0.2") // one address is enough: R3, the sibling
	kubelet := podsource.Static{{UID: "agent", HostNetwork: true}}
	both := podsource.Union(kubelet, nested(t))
	pass(t, store, both, map[string]gc.Verdict{"10.0.0.2": gc.InUse, "fd00::2": gc.InUse, "10.0.0.4": gc.Released})
	stop()
	pass(t, store, both, map[string]gc.Verdict{"10.0.0.2": gc.Released, "fd00::2": gc.Released})
}

// R9: a node without pods, as the kernel alone sees it, is an empty view. R4: a
// namespace without an address does not stand for a pod that may hold anything.
func TestIdleNode(t *testing.T) {
	if !onNode(t) {
		return
	}
	store := reserve(t, map[string]string{"10.0.0.2": "leaked"})
	startPod(t)
	report, err := gc.New(store, nested(t), gc.Options{}).Reconcile(t.Context())
	if !errors.Is(err, gc.ErrNoPods) || report.Counts()[gc.Released] != 0 {
		t.Errorf("got %v, %v, want %v", report.Counts(), err, gc.ErrNoPods)
	}
	agent := podsource.Static{{UID: "agent", HostNetwork: true}}
	pass(t, store, podsource.Union(agent, nested(t)), map[string]gc.Verdict{"10.0.0.2": gc.Released})
}
