// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
)

// hostile is text that the page must escape.
const hostile = `<script>alert("1&2")</script>`

const escaped = `&lt;script&gt;alert(&#34;1&amp;2&#34;)&lt;/script&gt;`

// TestAgent runs the built agent on directories that the plugin filled.
func TestAgent(t *testing.T) {
	n := plugintest.New(t, "podnet", plugintest.Range{Subnet: "10.1.0.0/24", Start: "10.1.0.2", End: "10.1.0.19"})
	storage := &plugintest.Plugin{Binary: n.Binary, DataDir: n.DataDir, Network: "storage", Ranges: []plugintest.Range{{Subnet: "10.2.0.0/24"}}}
	others := &plugintest.Plugin{Binary: n.Binary, DataDir: n.DataDir, Network: "others", Ranges: []plugintest.Range{{Subnet: "10.3.0.0/24"}}}
	live, byAddress := add(t, n, "live", time.Hour), add(t, n, "by-address", time.Hour)
	leaked, young := add(t, n, "leaked", time.Hour), add(t, n, "young", 0)
	named := add(t, n, "named", time.Hour) // its pod has a hostile name
	second := add(t, storage, "by-address", time.Hour)
	lost := add(t, storage, "leaked", time.Hour)
	elsewhere := add(t, others, "leaked", time.Hour)
	put(t, n.File(live), sandbox("live")+"\r\n\"><b>x") // a valid interface name
	date(t, n, live, time.Hour)

	dir := t.TempDir()
	pods := put(t, filepath.Join(dir, "pods.json"), "[]")
	writePods(t, pods, pod{ContainerIDs: []string{"live"}}, pod{IPs: []netip.Addr{byAddress}},
		pod{Namespace: "ns", Name: hostile, ContainerIDs: []string{"named"}})
	conf := put(t, filepath.Join(dir, "podnet.conf"), `{"cniVersion":"1.0.0","name":"podnet","type":"bridge",
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.2","rangeEnd":"10.1.0.19"}]]}}`)
	p := start(t, []string{"NODE_NAME=" + hostile, "HOSTLOCAL_GC_CNI_CONF=" + conf},
		"--data-dir", n.DataDir, "--network", "podnet", "--network", "storage", "--source", "file:"+pods)
	p.untilReady()

	for _, row := range []struct {
		reason string
		at     *plugintest.Plugin
		ip     netip.Addr
		want   bool
	}{
		{"its container is a live pod's", n, live, true},
		{"it is a live pod's", n, byAddress, true},
		{"its container is a live pod's, whatever that is called", n, named, true},
		{"it is younger than the minimum age", n, young, true},
		{"its container has an address in use in another network (R3)", storage, second, true},
		{"nobody holds it", n, leaked, false},
		{"nobody holds it, in the other network", storage, lost, false},
		{"nobody holds it, but its network is not named (R14)", others, elsewhere, true},
	} {
		if got := there(row.at, row.ip); got != row.want {
			t.Errorf("%v is reserved: %t, want %t: %s", row.ip, got, row.want, row.reason)
		}
	}

	verdicts := map[string]string{
		live.String(): "in-use", byAddress.String(): "in-use", named.String(): "in-use", young.String(): "young",
		leaked.String(): "released", second.String(): "in-use", lost.String(): "released", elsewhere.String(): "leaked",
	}
	page := p.ask(http.MethodGet, debugPath, "text/html,*/*;q=0.8")
	report := p.get(debugPath)
	if diff := cmp.Diff(verdicts, verdictsOf(t, report.body)); diff != "" {
		t.Errorf("JSON, verdicts (-want +got):\n%s", diff)
	}
	for ip := range verdicts {
		if !strings.Contains(page.body, ">"+ip+"<") {
			t.Errorf("the page lacks %s", ip)
		}
	}
	for _, text := range []string{"in-use", "young", "released", "younger than the minimum age", "10.1.0.2 to 10.1.0.19", "<svg ",
		"<h2>others <small>only read", "1 address released since the start", "<td>file</td><td>3</td>"} {
		if !strings.Contains(page.body, text) {
			t.Errorf("the page lacks %q", text)
		}
	}
	checkHarmless(t, page)
	checkEndpoints(t, p)
	fmt.Printf("The agent ended %v after SIGTERM\n", p.terminate().Round(time.Millisecond)) // information only
}

// checkHarmless checks that a page has no active content, and the headers that forbid it.
func checkHarmless(t *testing.T, page answer) {
	t.Helper()
	body := strings.ReplaceAll(page.body, "http://www.w3.org/2000/svg", "") // a namespace, not a link
	for _, text := range []string{"<script", "<b>x", "<i>", "<img", "<iframe", "<link", "javascript:", "//", "@import", "url(", "style="} {
		if strings.Contains(body, text) {
			t.Errorf("the page has %q", text)
		}
	}
	for _, text := range []string{escaped, "ns/" + escaped, "&#34;&gt;&lt;b&gt;x"} {
		if !strings.Contains(page.body, text) {
			t.Errorf("the page lacks %q", text)
		}
	}
	want := map[string]string{
		"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff",
		"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Vary": "Accept",
		"Content-Security-Policy": "default-src 'none'; style-src '" + hashOfStyle(t, page.body) +
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}
	got := make(map[string]string)
	for name := range want {
		got[name] = page.header.Get(name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers of the page (-want +got):\n%s", diff)
	}
}

func checkEndpoints(t *testing.T, p *process) {
	t.Helper()
	for _, row := range []struct {
		reason, method, path, accept string
		status                       int
		kind, body                   string
	}{
		{"it lives", "GET", "/healthz", "", 200, "text/plain", "ok"},
		{"the hook has ended", "GET", "/readyz", "", 200, "text/plain", "ok"},
		{"of the collector", "GET", "/metrics", "", 200, "text/plain", "hostlocal_gc_released_total{network=\"podnet\"} 1\n"},
		{"of the collector, of another network", "GET", "/metrics", "", 200, "text/plain", "hostlocal_gc_reservations{network=\"others\",reason=\"network-not-named\",verdict=\"leaked\"} 1\n"},
		{"of the process", "GET", "/metrics", "", 200, "text/plain", "go_goroutines"},
		{"a program takes anything", "GET", debugPath, "*/*", 200, "application/json", `"verdict"`},
		{"a program asks for JSON", "GET", debugPath, "application/json", 200, "application/json", `"verdict"`},
		{"a browser", "GET", debugPath, "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", 200, "text/html", "<!DOCTYPE html>"},
		{"JSON is preferred", "GET", debugPath, "text/html;q=0.5,application/json", 200, "application/json", `"verdict"`},
		{"the format wins", "GET", debugPath + "?format=json", "text/html", 200, "application/json", `"verdict"`},
		{"the format wins", "GET", debugPath + "?format=html", "application/json", 200, "text/html", "<!DOCTYPE html>"},
		{"no such format", "GET", debugPath + "?format=" + "%3Cscript%3E", "", 400, "text/plain", "no such format"},
		{"the root redirects to the page", "GET", "/", "", 302, "text/html", debugPath},
		{"a head", "HEAD", debugPath, "", 200, "application/json", ""},
		{"read only", "POST", debugPath, "", 405, "text/plain", "Method Not Allowed"},
		{"no such thing", "GET", "/debug/pprof/", "", 404, "text/plain", "not found"},
	} {
		got := p.ask(row.method, row.path, row.accept)
		if got.status != row.status || !strings.HasPrefix(got.header.Get("Content-Type"), row.kind) || !strings.Contains(got.body, row.body) {
			t.Errorf("%s %s for %q gives %d, %s, without %q: %s\n%.300s", row.method, row.path, row.accept,
				got.status, got.header.Get("Content-Type"), row.body, row.reason, got.body)
		}
	}
}

// verdictsOf parses the JSON, which must have the format of the command's report.
func verdictsOf(t *testing.T, text string) map[string]string {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "testdata", "report.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(value); err != nil {
		t.Error(err)
	}
	var report struct {
		Reservations []struct{ IP, Verdict string }
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, e := range report.Reservations {
		out[e.IP] = e.Verdict
	}
	return out
}
