// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package cnigc_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc"
)

// A runtime whose requests are for one network. It may send one without a list, or a part of one.
func TestSource(t *testing.T) {
	gctest.TestSource(t, func(*testing.T) gctest.Fixture {
		var mu sync.Mutex // guards what follows
		valid, key, cut := []map[string]string{}, "cni.dev/valid-attachments", 0
		set := func(change func()) func() {
			return func() {
				mu.Lock()
				defer mu.Unlock()
				change()
			}
		}
		entry := func(at podsource.Attachment) map[string]string {
			return map[string]string{"containerID": at.ContainerID, "ifname": at.IfName}
		}
		return gctest.Fixture{
			Source: podsource.AnswerFunc(func(ctx context.Context) (a podsource.Answer, err error) {
				var request []byte
				set(func() { request, err = json.Marshal(map[string]any{"name": "podnet", key: valid}) })()
				source, err := cnigc.New(request[:len(request)-cut], cnigc.Options{})
				if err != nil {
					return podsource.Answer{}, err
				}
				return source.Pods(ctx)
			}),
			Networks: []string{"podnet"},
			Attach: func(at podsource.Attachment) {
				if at.Network == "podnet" {
					set(func() { valid = append(valid, entry(at)) })()
				}
			},
			Detach: func(at podsource.Attachment) {
				set(func() {
					valid = slices.DeleteFunc(valid, func(e map[string]string) bool { return maps.Equal(e, entry(at)) })
				})()
			},
			Break: set(func() { cut = 1 }), Repair: set(func() { cut = 0 }),
			Lose: set(func() { key = "x" }), Reboot: set(func() { valid = nil }),
		}
	})
}

// If no attachment is valid, the source declares that there are no pods, and the pass is not
// refused (R9).
//
// Guard: [read] takes either key, and every attachment.
func TestHazard27ValidAttachments(t *testing.T) {
	for _, row := range []struct {
		reason, stdin string
		kept          string // of 10.0.0.2 and 10.0.0.3, two interfaces of a; 10.0.0.4 of b; and fd00::5 of c
	}{
		{"null: none is valid (hazard 34)", `{"name":"n","cni.dev/valid-attachments":null}`, ""},
		{"empty: none is valid", `{"name":"n","cni.dev/valid-attachments":[]}`, ""},
		{"one container: the reservation of its other interface is kept, too",
			`{"name":"n","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`, "10.0.0.2 10.0.0.3"},
		{"both interfaces", `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"a","ifname":"net1"}]}`,
			"10.0.0.2 10.0.0.3"},
		{"an owner that is a container ID alone", `{"name":"n","cni.dev/valid-attachments":[{"containerID":"b","ifname":"eth0"}]}`, "10.0.0.4"},
		{"as libcni sends it", `{"name":"n","cni.dev/attachments":[{"containerID":"c","ifname":"eth0"}],"cni.dev/valid-attachments":` +
			`[{"containerID":"c","ifname":"eth0"}],"cniVersion":"1.1.0","type":"x"}`, "fd00::5"},
		{"as libcni sends null", `{"name":"n","cni.dev/attachments":null,"cni.dev/valid-attachments":null,"cniVersion":"1.1.0"}`, ""},
		{"the key of the earlier draft alone", `{"name":"n","cni.dev/attachments":[{"containerID":"b","ifname":"eth0"}]}`, "10.0.0.4"},
		{"both keys with different lists: either keeps",
			`{"name":"n","cni.dev/attachments":[{"containerID":"b"}],"cni.dev/valid-attachments":[{"containerID":"c"}]}`, "10.0.0.4 fd00::5"},
		{"both keys, one with null: the other keeps",
			`{"name":"n","cni.dev/attachments":[{"containerID":"b"}],"cni.dev/valid-attachments":null}`, "10.0.0.4"},
		{"unknown keys, once or twice, in the request and in an attachment",
			`{"name":"n","cni.dev/new":[{}],"cni.dev/new":{},"Cni.dev/valid-attachments":[],"cni.dev/valid-attachments":[{"new":{"containerID":"b"},"containerID":"a","containerid":"c","ifname":7}]}`,
			"10.0.0.2 10.0.0.3"},
		{"a container without a reservation", ` {"name":"n","cni.dev/valid-attachments" : [ {"containerID" : "x"} ] } ` + "\n", ""},
	} {
		source, err := cnigc.New([]byte(row.stdin), cnigc.Options{})
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
			continue
		}
		dir, kept := gctest.NewDir(t), []string{}
		for _, network := range []string{"n", "other"} {
			for ip, content := range map[string]string{"10.0.0.2": "a\r\neth0", "10.0.0.3": "a\r\nnet1", "10.0.0.4": "b", "fd00::5": "c\r\neth0"} {
				dir.Write(network, ip, content, time.Hour)
			}
		}
		r, err := gc.New(dir.Store, []string{"n", "other"}, source, gc.Options{AllowForeign: []string{"*"}}) // names stand for IDs
		if err != nil {
			t.Fatal(err)
		}
		report, err := r.Reconcile(t.Context())
		for _, e := range report.Reservations {
			if e.Verdict != gc.Released && e.Network == "n" {
				kept = append(kept, e.IP.String())
			} else if e.Verdict == gc.Released && e.Network != source.Network() {
				t.Errorf("%s: released %v in another network", row.reason, e.IP)
			}
		}
		if slices.Sort(kept); err != nil || strings.Join(kept, " ") != row.kept {
			t.Errorf("%s: kept %v, %v, want %s", row.reason, kept, err, row.kept)
		}
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

// A request does not name later containers. So a source that is used for too long, as in a
// loop, returns an error, and their addresses are not released.
//
// Guard: [Source.Pods] compares the request's age with [Options.MaxAge].
func TestHazard62OldRequest(t *testing.T) {
	const request = `{"name":"n","cni.dev/valid-attachments":[{"containerID":"a"}]}`
	for lasts, opts := range map[time.Duration]cnigc.Options{cnigc.DefaultMaxAge: {}, time.Hour: {MaxAge: time.Hour}} {
		synctest.Test(t, func(t *testing.T) {
			source, err := cnigc.New([]byte(request), opts)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(lasts)
			if a, err := source.Pods(t.Context()); err != nil || len(a.Pods) != 1 {
				t.Errorf("it is valid for %v: got %v, %v", lasts, a.Pods, err)
			}
			time.Sleep(time.Second)
			a, err := source.Pods(t.Context())
			if err == nil || a.Networks != nil || !strings.Contains(err.Error(), "make a source of each request") {
				t.Errorf("after %v: got %+v, %v, want a remedy", lasts, a, err)
			}
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
		dir := gctest.NewDir(t)
		dir.Reserve("n", "10.0.0.2", gctest.ContainerID("later"), 0)
		dir.Reserve("n", "10.0.0.9", gctest.ContainerID("ended"), 2*time.Minute)
		r, err := gc.New(dir.Store, []string{"n"}, source, gc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		report, _ := r.AtStartup(t.Context(), gc.NoADDInFlight) // Check checks the error
		gctest.Check(t, report, "10.0.0.2 foreign not-recorded", "10.0.0.9 released")
		time.Sleep(2 * gc.DefaultMinAge)
		report, _ = r.Reconcile(t.Context())
		gctest.Check(t, report, "10.0.0.2 foreign not-recorded")
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
