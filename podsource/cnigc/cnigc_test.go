// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package cnigc_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc"
)

// files are the reservations of each row: one of the current format, one of a second
// interface, one of the format before v0.8.0, and one of IPv6.
var files = map[string]string{"10.0.0.2": "a\r\neth0", "10.0.0.3": "a\r\nnet1", "10.0.0.4": "b", "fd00::5": "c\r\neth0"}

// newNode returns a data directory with these reservations, of that age, in network n and in
// another network.
func newNode(t *testing.T, age time.Duration) *hostlocal.Store {
	t.Helper()
	dataDir := t.TempDir()
	for _, network := range []string{"n", "other"} {
		dir := filepath.Join(dataDir, network)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			path, then := filepath.Join(dir, name), time.Now().Add(-age)
			if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, then, then)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return hostlocal.New(dataDir)
}

// left returns the reservations of a network that still exist.
func left(t *testing.T, store *hostlocal.Store, network string) (all []string) {
	t.Helper()
	names, err := os.ReadDir(filepath.Join(store.DataDir(), network))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n.Name() != "lock" {
			all = append(all, n.Name())
		}
	}
	return all
}

// newReconciler returns a reconciler of a node that has been up for a day. Names stand for IDs.
func newReconciler(t *testing.T, store *hostlocal.Store, source podsource.Source) *gc.Reconciler {
	t.Helper()
	gctest.Uptime(t, 24*time.Hour)
	r, err := gc.New(store, []string{"n", "other"}, source, gc.Options{AllowForeign: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pass runs a pass over both networks, with reservations that are an hour old, and returns
// those that are left in network n. All of the other network must be left (hazard 74).
func pass(t *testing.T, source podsource.Source) (inN []string, err error) {
	t.Helper()
	store := newNode(t, time.Hour)
	_, err = newReconciler(t, store, source).Reconcile(t.Context())
	if other := left(t, store, "other"); len(other) != len(files) {
		t.Errorf("the request for network n released in the other one: only %v are left there", other)
	}
	return left(t, store, "n"), err
}

// If no attachment is valid, the source declares that there are no pods, and the pass is not
// refused (R9).
//
// Guard: [read] takes either key, and every attachment.
func TestHazard27ValidAttachments(t *testing.T) {
	for _, row := range []struct {
		reason, stdin string
		left          []string
	}{
		{"null: none is valid", `{"name":"n","cni.dev/valid-attachments":null}`, nil},
		{"empty: none is valid", `{"name":"n","cni.dev/valid-attachments":[]}`, nil},
		{"one container: the reservation of its other interface is kept, too",
			`{"name":"n","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`, []string{"10.0.0.2", "10.0.0.3"}},
		{"both interfaces", `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"a","ifname":"net1"}]}`,
			[]string{"10.0.0.2", "10.0.0.3"}},
		{"an owner that is a container ID alone", `{"name":"n","cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}]}`, []string{"10.0.0.4"}},
		{"as libcni sends it", `{"name":"n","cni.dev/attachments":[{"containerID":"c","ifname":"eth0"}],"cni.dev/valid-attachments":` +
			`[{"containerID":"c","ifname":"eth0"}],"cniVersion":"1.1.0","type":"x"}`, []string{"fd00::5"}},
		{"as libcni sends null", `{"name":"n","cni.dev/attachments":null,"cni.dev/valid-attachments":null,"cniVersion":"1.1.0"}`, nil},
		{"the key of the earlier draft alone", `{"name":"n","cni.dev/attachments":[{"containerID":"b","ifname":"eth0"}]}`, []string{"10.0.0.4"}},
		{"both keys with different lists: either keeps",
			`{"name":"n","cni.dev/attachments":[{"containerID":"b"}],"cni.dev/valid-attachments":[{"containerID":"c"}]}`, []string{"10.0.0.4", "fd00::5"}},
		{"both keys, one with null: the other keeps",
			`{"name":"n","cni.dev/attachments":[{"containerID":"b"}],"cni.dev/valid-attachments":null}`, []string{"10.0.0.4"}},
		{"unknown keys, once or twice, in the request and in an attachment",
			`{"name":"n","cni.dev/new":[{}],"cni.dev/new":{},"Cni.dev/valid-attachments":[],"cni.dev/valid-attachments":[{"new":{"containerID":"b"},"containerID":"a","containerid":"c","ifname":7}]}`,
			[]string{"10.0.0.2", "10.0.0.3"}},
		{"a container without a reservation", ` {"name":"n","cni.dev/valid-attachments" : [ {"containerID" : "x"} ] } ` + "\n", nil},
	} {
		t.Run(row.reason, func(t *testing.T) {
			source, err := cnigc.New([]byte(row.stdin), cnigc.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := pass(t, source)
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(row.left, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A request without a valid list is an error.
//
// Guard: [read] requires the list, and [object] each key once.
func TestHazard27NoValidAttachments(t *testing.T) {
	for _, row := range []struct{ reason, stdin, want string }{
		{"the list is missing: libcni without arguments", `{"cniVersion":"1.1.0","name":"n","type":"x"}`, "cni.dev/valid-attachments"},
		{"no network: the list could be that of any", `{"cni.dev/valid-attachments":[]}`, "it has no name"},
		{"a network in another letter case", `{"Name":"n","cni.dev/valid-attachments":[]}`, "it has no name"},
		{"null for the network", `{"name":null,"cni.dev/valid-attachments":[]}`, "its name"},
		{"an empty one", `{"name":"","cni.dev/valid-attachments":[]}`, "its name"},
		{"a number for it", `{"name":7,"cni.dev/valid-attachments":[]}`, "its name"},
		{"a path for it", `{"name":"../n","cni.dev/valid-attachments":[]}`, "its name"},
		{"two networks", `{"name":"n","name":"other","cni.dev/valid-attachments":[]}`, "twice"},
		{"in another letter case", `{"name":"n","CNI.dev/valid-attachments":[]}`, "cni.dev/valid-attachments"},
		{"no request at all", ``, "unexpected end"},
		{"not an object", `[]`, "not a JSON object"},
		{"null", `null`, "not a JSON object"},
		{"not JSON", `GC`, "invalid"},
		{"something after the end", `{"name":"n","cni.dev/valid-attachments":[]} {}`, "after top-level value"},
		{"garbage after the end", `{"name":"n","cni.dev/valid-attachments":[]}]`, "after top-level value"},
		{"the list twice", `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a"}],"cni.dev/valid-attachments":[]}`, "twice"},
		{"a list that is an object", `{"name":"n","cni.dev/valid-attachments":{}}`, "cni.dev/valid-attachments"},
		{"a list that is a string", `{"name":"n","cni.dev/valid-attachments":"a"}`, "cni.dev/valid-attachments"},
		{"the other list is no list", `{"name":"n","cni.dev/valid-attachments":[],"cni.dev/attachments":0}`, "cni.dev/attachments"},
		{"null for an attachment", `{"name":"n","cni.dev/valid-attachments":[null]}`, "attachment 1"},
		{"a string for an attachment", `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a"},"b"]}`, "attachment 2"},
		{"no container ID", `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a"},{"ifname":"eth0"}]}`, "attachment 2: it has no containerID"},
		{"a container ID in another letter case", `{"name":"n","cni.dev/valid-attachments":[{"containerid":"a"}]}`, "no containerID"},
		{"null for one", `{"name":"n","cni.dev/valid-attachments":[{"containerID":null}]}`, "its containerID"},
		{"an empty one", `{"name":"n","cni.dev/valid-attachments":[{"containerID":""}]}`, "its containerID"},
		{"a number", `{"name":"n","cni.dev/valid-attachments":[{"containerID":7}]}`, "containerID"},
		{"two of them", `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a","containerID":"b"}]}`, "twice"},
		{"one with a scheme", `{"name":"n","cni.dev/valid-attachments":[{"containerID":"containerd://a"}]}`, "its containerID"},
		{"one with bytes that JSON replaces", "{\"name\":\"n\",\"cni.dev/valid-attachments\":[{\"containerID\":\"a\xff\"}]}", "its containerID"},
	} {
		source, err := cnigc.New([]byte(row.stdin), cnigc.Options{})
		if err == nil || source != nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, %v, want an error that contains %q", row.reason, source, err, row.want)
		}
	}
	const request = `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`
	for size := range len(request) {
		if source, err := cnigc.New([]byte(request[:size]), cnigc.Options{}); err == nil || source != nil {
			t.Errorf("truncated to %q: %v, %v, want an error", request[:size], source, err)
		}
	}
}

// An empty list without the request's declaration is refused.
//
// Guard: [New] declares that no pods means that there are none.
func TestHazard34NothingIsValid(t *testing.T) {
	got, err := pass(t, podsource.Static{})
	if !errors.Is(err, gc.ErrNoPods) || len(got) != len(files) {
		t.Errorf("left %v, %v, want all and %v", got, err, gc.ErrNoPods)
	}
	source, err := cnigc.New([]byte(`{"name":"n","cni.dev/valid-attachments":null}`), cnigc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pass(t, source); err != nil || got != nil {
		t.Errorf("left %v, %v, want nothing", got, err)
	}
	// The declaration does not extend to a runtime without pods.
	if got, err := pass(t, podsource.Union(podsource.Static{}, source)); !errors.Is(err, gc.ErrNoPods) || len(got) != len(files) {
		t.Errorf("with an idle runtime: left %v, %v, want all and %v", got, err, gc.ErrNoPods)
	}
}

// A request counts only in its own network. All other hazard tests here check the other
// network as well. Here another source speaks of that network, too.
//
// Guard: [New] declares the network that the answer speaks of, and in which it names
// containers.
func TestHazard74AnotherNetwork(t *testing.T) {
	requests := podsource.AnswerFunc(func(ctx context.Context) (podsource.Answer, error) { // one for each pass
		source, err := cnigc.New([]byte(`{"name":"n","cni.dev/valid-attachments":[{"containerID":"c"}]}`), cnigc.Options{})
		if err != nil {
			return podsource.Answer{}, err
		}
		if source.Network() != "n" {
			t.Errorf("its network is %q, want n", source.Network())
		}
		return source.Pods(ctx)
	})
	// Starting pods claim reservations that no source names. In n the request ends that
	// claim, for reservations that are old enough.
	kubelet := podsource.Static{{UID: "starting"}}
	synctest.Test(t, func(t *testing.T) {
		store := newNode(t, 0)
		r := newReconciler(t, store, podsource.Union(kubelet, requests))
		all := []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "fd00::5"}
		for _, row := range []struct {
			reason string
			sleep  time.Duration
			want   []string // in n
		}{
			{"young", 0, all},
			{"older than StartingFor", gc.DefaultStartingFor + time.Second, []string{"fd00::5"}},
		} {
			time.Sleep(row.sleep)
			if _, err := r.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			for network, want := range map[string][]string{"n": row.want, "other": all} {
				if diff := cmp.Diff(want, left(t, store, network)); diff != "" {
					t.Errorf("%s: network %s (-want +got):\n%s", row.reason, network, diff)
				}
			}
		}
	})
}

// A request does not name later containers. So a source that is used for too long, as in a
// loop, returns an error, and their addresses are not released.
//
// Guard: [Source.Pods] compares the request's age with [Options.MaxAge].
func TestHazard62OldRequest(t *testing.T) {
	const request = `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a"}]}`
	for _, row := range []struct {
		reason string
		opts   cnigc.Options
		lasts  time.Duration
	}{
		{"the default", cnigc.Options{}, cnigc.DefaultMaxAge},
		{"as long as the caller lets no ADD begin", cnigc.Options{MaxAge: time.Hour}, time.Hour},
	} {
		t.Run(row.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source, err := cnigc.New([]byte(request), row.opts)
				if err != nil {
					t.Fatal(err)
				}
				store := newNode(t, 0)
				r := newReconciler(t, store, source)
				time.Sleep(row.lasts)
				if _, err := r.Reconcile(t.Context()); err != nil {
					t.Errorf("it is valid for %v: %v", row.lasts, err)
				}
				time.Sleep(time.Second)
				store = newNode(t, gc.DefaultMinAge) // reservations from after the request, which are old enough
				_, err = newReconciler(t, store, source).Reconcile(t.Context())
				if !errors.Is(err, gc.ErrRefused) || !strings.Contains(err.Error(), "make a source of each request") {
					t.Errorf("got %v, want %v and a remedy", err, gc.ErrRefused)
				}
				if got := left(t, store, "n"); len(got) != len(files) {
					t.Errorf("only %v are left", got)
				}
			})
		})
	}
	if source, err := cnigc.New([]byte(request), cnigc.Options{MaxAge: -1}); source != nil || err == nil || !strings.Contains(err.Error(), "negative") {
		t.Errorf("got %v, %v", source, err)
	}
}

// A request can't list later containers, however long it is valid.
//
// Guard: [New] declares a gap since the request.
func TestHazard62ReservedAfterTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		source, err := cnigc.New([]byte(`{"name":"n","cni.dev/valid-attachments":[]}`), cnigc.Options{MaxAge: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		store := newNode(t, 0)
		ended, then := filepath.Join(store.DataDir(), "n", "10.0.0.9"), time.Now().Add(-2*time.Minute)
		if err := errors.Join(os.WriteFile(ended, []byte("ended\r\neth0"), 0o600), os.Chtimes(ended, then, then)); err != nil {
			t.Fatal(err)
		}
		r := newReconciler(t, store, source)
		if _, err := r.AtStartup(t.Context(), gc.NoADDInFlight); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * gc.DefaultMinAge)
		if _, err := r.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := left(t, store, "n"); len(got) != len(files) {
			t.Errorf("left are %v, want the later ones, and not 10.0.0.9", got)
		}
	})
}

// FuzzNew: any bytes are a request or an error. The container IDs of a request are valid in
// CNI, each once.
func FuzzNew(f *testing.F) {
	for _, seed := range []string{
		`{"name":"n","cni.dev/valid-attachments":null}`, `{"cni.dev/attachments":[],"name":"n"}`, `{}`, `{"a":1,"a":2}`,
		`{"name":"n","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"a","ifname":"net1"}],"cni.dev/attachments":[{"containerID":"b"}]}`,
		`{"name":"n","cni.dev/valid-attachments":[{"containerID":"\ud800"}]}`, `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a","containerID":"b"}]}`,
		`{"name":"\ud800","cni.dev/valid-attachments":[]}`,
	} {
		f.Add([]byte(seed))
	}
	const notCNI = "/: \t\r\n\ufffd"
	f.Fuzz(func(t *testing.T, stdin []byte) {
		source, err := cnigc.New(stdin, cnigc.Options{})
		if err != nil {
			if source != nil {
				t.Errorf("both an error and a source: %v, %v", err, source)
			}
			return
		}
		a, err := source.Pods(t.Context())
		if err != nil || !a.Authoritative || len(a.Networks) != 1 || a.Networks[0] == "" || strings.ContainsAny(a.Networks[0], notCNI) {
			t.Fatalf("%+v, %v", a, err)
		}
		if a.Names != podsource.AnyContainer || !a.AtOnce {
			t.Errorf("it names kind %v, at once: %t", a.Names, a.AtOnce)
		}
		seen := make(map[string]bool)
		for _, p := range a.Pods {
			if len(p.ContainerIDs) != 1 || seen[p.ContainerIDs[0]] || p.ContainerIDs[0] == "" || strings.ContainsAny(p.ContainerIDs[0], notCNI) {
				t.Fatalf("%+v", a.Pods)
			}
			seen[p.ContainerIDs[0]] = true
		}
	})
}
