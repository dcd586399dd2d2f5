// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/agent"
	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
)

// A fleetPod is a pod of the server of fleetServer, and what its agent answers.
type fleetPod struct {
	node, phase string // Running if empty
	ending      bool
	status      int // 200 if zero; -1 hangs
	body        string
	asked       func() // nil if nothing is to be done then
}

// answer answers in the agent's place, or as the API server does if that can't be reached, or may not be asked.
func (p *fleetPod) answer(t *testing.T, w http.ResponseWriter, elsewhere string, ended chan struct{}) {
	if p.asked != nil {
		p.asked()
	}
	switch p.status {
	case 0:
		fmt.Fprint(w, p.body)
	case -1:
		<-ended
	case http.StatusFound:
		w.Header().Set("Location", elsewhere)
		w.WriteHeader(p.status)
	case http.StatusTeapot:
		w.WriteHeader(p.status)
		for range 64 {
			if _, err := w.Write(make([]byte, maxState)); err != nil {
				return
			}
		}
		t.Error("an endless error was read")
	default:
		refusal := forbidden
		if p.status != http.StatusForbidden {
			refusal.Message, refusal.Reason = "error trying to reach service: "+p.body, metav1.StatusReasonServiceUnavailable
		}
		write(w, p.status, refusal)
	}
}

var forbidden = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
	Reason: metav1.StatusReasonForbidden, Code: 403, Message: "no such right"}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// fleetServer is an API server with these pods and nodes. It returns a kubeconfig. A list of nodes that is nil is forbidden.
func fleetServer(t *testing.T, pods []fleetPod, names []string) string {
	t.Helper()
	ended := make(chan struct{})
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s follows a redirect, with the caller's token", r.Method, r.URL)
	}))
	t.Cleanup(other.Close)
	mux := http.NewServeMux()
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	for i, p := range pods {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("agent-", i)}, Spec: corev1.PodSpec{NodeName: p.node}}
		pod.Status.Phase = corev1.PodPhase(cmp.Or(p.phase, "Running"))
		if p.ending {
			pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}
		list.Items = append(list.Items, pod)
		mux.HandleFunc("/api/v1/namespaces/ns/pods/http:"+pod.Name+":9777/proxy/node", func(w http.ResponseWriter, _ *http.Request) {
			p.answer(t, w, other.URL, ended)
		})
	}
	mux.HandleFunc("/api/v1/namespaces/ns/pods", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("labelSelector") != "app.kubernetes.io/name=hostlocal-gc" {
			t.Errorf("pods are selected by %q", r.FormValue("labelSelector"))
		}
		write(w, 200, list)
	})
	mux.HandleFunc("/api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("labelSelector") != "kubernetes.io/os=linux" || r.FormValue("resourceVersion") != "0" {
			t.Errorf("nodes are selected by %q, or not from the API server's memory", r.URL)
		}
		if names == nil {
			write(w, 403, forbidden)
			return
		}
		nodes := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
		for _, name := range names {
			nodes.Items = append(nodes.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		write(w, 200, nodes)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() { close(ended); server.Close() })
	path := filepath.Join(t.TempDir(), "kubeconfig")
	cnitest.Write(t, path, fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: %q}}],
		contexts: [{name: c, context: {cluster: c}}]}`, server.URL), 0)
	return path
}

// state is the answer of an agent on a node.
func state(node, word, network, text string, more ...diagnose.Finding) string {
	s := agent.NodeState{SchemaVersion: 1, Node: node, Word: word}
	if word != "OK" {
		s.Findings = append([]diagnose.Finding{{Word: word, Network: network, Text: text, Since: time.Now().Add(-3 * time.Hour)}}, more...)
	}
	body, _ := json.Marshal(s) // of plain values
	return string(body)
}

// What the command shows of a cluster.
func TestFleet(t *testing.T) {
	fine := func(node string) fleetPod { return fleetPod{node: node, body: state(node, "OK", "", "")} }
	const refused = "dial tcp 10.99.0.12:9777: connect: connection refused"
	long := strings.Repeat("long text ", 20)
	for _, row := range []struct {
		reason string
		pods   []fleetPod
		nodes  []string
		status int
		want   string
	}{
		{"all is well, also beside an agent that ends after a rollout, in both orders",
			[]fleetPod{{node: "a", ending: true, status: 503}, fine("a"), fine("b"), {node: "b", phase: "Failed"}}, []string{"a", "b"}, statusDone, `
2 of 2 nodes are fine.
`},
		{"the gravest first, each in one line of 80 columns",
			[]fleetPod{
				{node: "one", body: state("one", "CONFLICT", "podnet", "1 reservation is claimed")},
				{node: "two", body: state("two", "FULL", "podnet", long, diagnose.Finding{Word: "CONFLICT"}, diagnose.Finding{Word: "CONFLICT"})},
				{node: "six", body: state("six", "MISSING", "podnet", "\u009b2Jgone\x7f\u202eOK")}, fine("ten"),
			}, []string{"one"}, statusLeaked, `
NODE  STATE     SINCE  WHAT (-o json has all)
six   MISSING      3h  podnet: ?2Jgone??OK
two   FULL         3h  (+2) podnet: long text long text long text long text lon…
one   CONFLICT     3h  podnet: 1 reservation is claimed
1 of 4 nodes are fine.
`},
		{"names without their domains",
			[]fleetPod{{node: "ip-10-0-0-1.x.internal", body: state("", "FULL", "podnet", "full")}, fine("b.x.internal")},
			[]string{"b.x.internal"}, statusLeaked, `
NODE         STATE  SINCE  WHAT (-o json has all)
ip-10-0-0-1  FULL      3h  podnet: full
1 of 2 nodes are fine.
`},
		{"... but for addresses", []fleetPod{{node: "10.0.0.1", body: state("", "FULL", "podnet", "full")}}, []string{"10.0.0.1"}, statusLeaked, `
NODE      STATE  SINCE  WHAT (-o json has all)
10.0.0.1  FULL      3h  podnet: full
0 of 1 nodes are fine.
`},
		{"... and where two would be the same", []fleetPod{{node: "a.x", body: state("", "FULL", "podnet", "full")}, fine("a.y")}, []string{"a.x"},
			statusLeaked, `
NODE  STATE  SINCE  WHAT (-o json has all)
a.x   FULL      3h  podnet: full
1 of 2 nodes are fine.
`},
		{"what does not answer is never fine",
			[]fleetPod{
				{node: "a", status: 503, body: refused}, {node: "b", body: "<html>"}, {node: "c", body: "{}"},
				{node: "d", phase: "Pending"}, {node: "e", body: state("f", "OK", "", "")}, {node: "g", status: 403},
				{node: "h", body: strings.Repeat(" ", maxState) + state("h", "OK", "", "")}, {phase: "Pending"}, fine("i"),
				{node: "k", status: http.StatusFound}, {node: "l", status: http.StatusTeapot},
				{node: "m", body: state("m", long, "", "x")}, {node: "n", body: strings.Replace(state("n", "OK", "", ""), ":1", ":2", 1)},
				{node: "o", body: strings.Replace(state("o", "FULL", "podnet", "full"), "FULL", "OK", 1)},
			}, []string{"a", "j"}, statusLeaked, `
NODE         STATE    SINCE  WHAT (-o json has all)
a            UNKNOWN         dial tcp 10.99.0.12:9777: connect: connection refu…
b            UNKNOWN         reading its agent's answer: invalid character '<' …
c            UNKNOWN         something else than an agent answers at port 9777
d            UNKNOWN         its agent's pod agent-3 is Pending
e            UNKNOWN         the agent of another node answers: f
g            UNKNOWN         no such right
h            UNKNOWN         reading its agent's answer: EOF
j            UNKNOWN         no agent runs here
k            UNKNOWN         the server responded with the status code 302 but …
l            UNKNOWN         the server responded with the status code 418 but …
m            UNKNOWN         something else than an agent answers at port 9777
n            UNKNOWN         its agent answers in version 2, and this command k…
pod agent-7  UNKNOWN         its agent's pod agent-7 is Pending
o            FULL        3h  podnet: full
1 of 15 nodes are fine.
`},
		{"each of two agents on a node counts", []fleetPod{fine("a"), {node: "a", body: state("a", "FULL", "podnet", "full")}},
			nil, statusLeaked, `
NODE  STATE  SINCE  WHAT (-o json has all)
a     FULL      3h  podnet: full
1 of 2 nodes are fine.
nodes without an agent are not known: no such right
`},
		{"it hangs", []fleetPod{{node: "a", status: -1}}, []string{}, statusLeaked, `
NODE  STATE    SINCE  WHAT (-o json has all)
a     UNKNOWN         no answer within 1s
0 of 1 nodes are fine.
`},
		{"a word of a later version", []fleetPod{fine("a"), {node: "b", body: state("b", "NOVEL", "", "x")}}, []string{}, statusLeaked, `
NODE  STATE  SINCE  WHAT (-o json has all)
b     NOVEL     3h  x
1 of 2 nodes are fine.
`},
		{"no agent may be asked", []fleetPod{{node: "a", status: 403}, {node: "b", status: 403}}, []string{}, statusError, `
hostlocal-gc: asking the agents: no such right
`},
		{"no agent serves its port", []fleetPod{{node: "a", status: 503, body: refused}}, []string{"c"}, statusError, `
hostlocal-gc: no agent serves port 9777: they need --metrics-listen, as in the component deploy/monitoring
`},
		{"no agent", nil, []string{"a"}, statusError, `
hostlocal-gc: there is no agent: no pod in namespace ns has the labels app.kubernetes.io/name=hostlocal-gc; --namespace and --selector say which
`},
	} {
		config := fleetServer(t, row.pods, row.nodes)
		patience := map[bool]string{true: "1s", false: "5m"}[row.reason == "it hangs"]
		got := run(t, t.TempDir(), nil, "fleet", "-n", "ns", "--kubeconfig", config, "--timeout", patience)
		if diff := gocmp.Diff(strings.TrimPrefix(row.want, "\n"), got.stdout+got.stderr); diff != "" || got.status != row.status {
			t.Errorf("%s: status %d, want %d (-want +got):\n%s", row.reason, got.status, row.status, diff)
		}
		if row.status == statusError {
			continue
		}
		// The JSON has all nodes in that order, and nothing that moves a cursor.
		got = run(t, t.TempDir(), nil, "fleet", "-n", "ns", "--kubeconfig", config, "--timeout", patience, "-o", "json")
		var report fleetReport
		must(t, json.Unmarshal([]byte(got.stdout), &report))
		lines := strings.Split(row.want, "\n")[2:]
		for i, n := range report.Nodes {
			said, bad := n.Error != "" || n.State != nil && n.State.Word == n.Word, n.Word != diagnose.OK
			if !said || bad != (i < len(report.Nodes)-report.Fine) || bad && !strings.HasPrefix(n.Node+" ", strings.Fields(lines[i])[0]) {
				t.Errorf("%s: %+v is in line %d of the JSON", row.reason, n, i)
			}
		}
		note := report.Note != "" && strings.Contains(row.want, report.Note)
		if note != (row.nodes == nil) || strings.ContainsAny(got.stdout, "\u009b\x7f\u202e") || got.status != row.status {
			t.Errorf("%s: status %d, the JSON is %s", row.reason, got.status, got.stdout)
		}
	}
}

// Ctrl-C ends the command without a word on the nodes.
func TestFleetInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	err := (&app{stdout: &out}).fleet(ctx, &fleetFlags{
		namespace: "ns", selector: "app.kubernetes.io/name=hostlocal-gc", port: "9777", timeout: time.Hour, format: formatTable,
		kubeconfig: fleetServer(t, []fleetPod{{node: "a", status: -1, asked: cancel}}, nil),
	})
	if !errors.Is(err, context.Canceled) || out.Len() > 0 {
		t.Errorf("%v, %s", err, out.String())
	}
}

// Under kubectl's name for a plugin the command is fleet, also without arguments.
func TestPluginName(t *testing.T) {
	for _, row := range []struct{ args, want string }{
		{"/bin/kubectl-hostlocal_gc", "fleet"}, {"/bin/kubectl-hostlocal_gc -o json", "fleet -o json"},
		{"kubectl-hostlocal_gc.exe --help", "fleet --help"}, {"kubectl-hostlocal_gc fleet", "fleet"},
		{"/bin/hostlocal-gc", ""}, {"hostlocal-gc check -o json", "check -o json"},
	} {
		if got := strings.Join(commandLine(strings.Fields(row.args)), " "); got != row.want {
			t.Errorf("%s: got %q, want %q", row.args, got, row.want)
		}
	}
}
