// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/agent"
	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc/reportjson"
)

// pluginName is the name under which kubectl finds the command as a plugin: kubectl hostlocal-gc.
const pluginName = "kubectl-hostlocal_gc"

// Limits for the agents' answers.
const (
	askedAtOnce = 32
	maxState    = 1 << 20                  // bytes
	maxWord     = len(diagnose.Unreserved) // no word is longer
)

// commandLine returns the arguments of the command. As a plugin of kubectl it is fleet.
func commandLine(args []string) []string {
	plugin := strings.TrimSuffix(filepath.Base(args[0]), ".exe") == pluginName
	if plugin && (len(args) == 1 || strings.HasPrefix(args[1], "-")) {
		return append([]string{"fleet"}, args[1:]...)
	}
	return args[1:]
}

type fleetFlags struct {
	namespace, selector, kubeconfig, context, port, format string
	timeout                                                time.Duration
}

func (a *app) fleetCommand() *cobra.Command {
	f := fleetFlags{}
	c := &cobra.Command{
		Use:   "fleet",
		Short: "Show which nodes of the cluster need a person",
		Long: `Ask the agents of all nodes, and show a line for each node that needs a person,
the gravest first. The words are those of check; UNKNOWN is also a node without
an agent, or whose agent does not answer.

It asks through the API server, with the rights of your kubeconfig: list pods
and get pods/proxy, and list nodes to find those without an agent. The agents
must serve metrics (--metrics-listen, or the component deploy/monitoring).

As kubectl-hostlocal_gc in a directory of PATH it is kubectl hostlocal-gc.

Exit status: 0 all nodes are fine, 3 some are not, 1 error.`,
		Example: `  hostlocal-gc fleet
  kubectl hostlocal-gc -o json`,
	}
	c.RunE = func(*cobra.Command, []string) error { return a.fleet(c.Context(), &f) }
	p := c.Flags()
	p.StringVarP(&f.namespace, "namespace", "n", "kube-system", "`NAMESPACE` of the agents")
	p.StringVarP(&f.selector, "selector", "l", "app.kubernetes.io/name=hostlocal-gc", "`LABELS` of the agents' pods")
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: as kubectl)")
	p.StringVar(&f.context, "context", "", "`CONTEXT` of the kubeconfig (default: the current one)")
	p.StringVar(&f.port, "port", "9777", "`PORT` at which the agents serve metrics")
	p.DurationVar(&f.timeout, "timeout", 3*time.Second, "how long to wait for the answer of each agent")
	p.StringVarP(&f.format, "output", "o", formatTable, "`FORMAT`: table, json")
	return c
}

// A fleetNode is a node with its agent, or an agent that is on no node yet. Of two agents on a node there is one each.
type fleetNode struct {
	Node  string           `json:"node"`
	Word  string           `json:"word"`            // that of its agent, or UNKNOWN
	Error string           `json:"error,omitempty"` // why its agent gave no answer
	State *agent.NodeState `json:"state,omitempty"` // the answer
	pod   *corev1.Pod      // of the agent; nil if there is none
	err   error            // that of Error
}

// fleetReport is the output. Its JSON is a contract.
type fleetReport struct {
	SchemaVersion int         `json:"schemaVersion"`
	Nodes         []fleetNode `json:"nodes"`          // the gravest first
	Fine          int         `json:"fine"`           // the number of those that are OK
	Note          string      `json:"note,omitempty"` // why nodes without an agent are not known
}

func (a *app) fleet(ctx context.Context, f *fleetFlags) error {
	if f.format != formatTable && f.format != formatJSON {
		return usagef("there is no output format %q: give table or json", f.format)
	}
	if f.timeout <= 0 {
		return usagef("--timeout %v is not positive", f.timeout)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("there is none: --kubeconfig says where")
	}
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS, config.UserAgent = -1, "hostlocal-gc" // askedAtOnce is the limit
	config.Wrap(func(to http.RoundTripper) http.RoundTripper { return limited{to} })
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	// What answers at an agent's port gets no token: client-go sends it to each place of a redirect (transport/round_trippers.go).
	httpClient.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client, err := typedcorev1.NewForConfigAndClient(config, httpClient)
	names, err2 := metadata.NewForConfigAndClient(config, httpClient)
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	report, err := askFleet(ctx, client, names.Resource(corev1.SchemeGroupVersion.WithResource("nodes")), f)
	if err != nil {
		return err
	}
	if f.format == formatJSON {
		err = writeJSON(a.stdout, report)
	} else {
		_, err = io.WriteString(a.stdout, a.fleetText(report, time.Now()))
	}
	if err == nil && report.Fine < len(report.Nodes) {
		return errFound
	}
	return err
}

// limited reads no more than maxState of an agent's answer, after unpacking it. client-go reads that of an error to its end.
type limited struct{ http.RoundTripper }

func (l limited) RoundTrip(q *http.Request) (*http.Response, error) {
	r, err := l.RoundTripper.RoundTrip(q)
	if err == nil && strings.HasSuffix(q.URL.Path, agent.NodePath) {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(r.Body, maxState), r.Body}
	}
	return r, err
}

// askFleet asks all agents, and judges their answers. Of nodes it reads names only: their specs and statuses are large.
func askFleet(ctx context.Context, client typedcorev1.CoreV1Interface, nodes metadata.Getter, f *fleetFlags) (*fleetReport, error) {
	list, cancel := context.WithTimeout(ctx, 10*f.timeout)
	defer cancel()
	pods, err := client.Pods(f.namespace).List(list, metav1.ListOptions{LabelSelector: f.selector, ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("listing the agents: %w", err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("there is no agent: no pod in namespace %s has the labels %s; --namespace and --selector say which",
			f.namespace, f.selector)
	}
	r := &fleetReport{SchemaVersion: reportjson.SchemaVersion}
	known := make(map[string]bool)
	for _, ready := range []bool{true, false} { // one that can't answer is of interest if it is alone: after a rollout an old one may end
		for i := range pods.Items {
			p := &pods.Items[i]
			node := cmp.Or(p.Spec.NodeName, "pod "+p.Name) // no node was found for it
			if answers(p) == ready && (ready || !known[node]) {
				known[node], r.Nodes = true, append(r.Nodes, fleetNode{Node: node, pod: p})
			}
		}
	}
	names, err := nodes.List(list, metav1.ListOptions{LabelSelector: "kubernetes.io/os=linux", ResourceVersion: "0"})
	if err != nil {
		r.Note = "nodes without an agent are not known: " + err.Error()
		return r, r.ask(ctx, client, f)
	}
	for i := range names.Items {
		if name := names.Items[i].Name; !known[name] {
			r.Nodes = append(r.Nodes, fleetNode{Node: name})
		}
	}
	return r, r.ask(ctx, client, f)
}

// answers reports whether a pod may be the agent of its node.
func answers(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil
}

// ask asks the agents, several at once, and sorts the nodes. It is an error if none answers, and one could not be asked or
// serves no port.
func (r *fleetReport) ask(ctx context.Context, client typedcorev1.CoreV1Interface, f *fleetFlags) error {
	var asking sync.WaitGroup
	free := make(chan struct{}, askedAtOnce)
	for i := range r.Nodes {
		free <- struct{}{}
		asking.Go(func() {
			defer func() { <-free }()
			n := &r.Nodes[i]
			if n.State, n.err = askAgent(ctx, client, f, n); n.err == nil {
				n.Word = n.State.Word
				return
			}
			n.Word = diagnose.Unknown
			n.Error = strings.TrimPrefix(n.err.Error(), "error trying to reach service: ") // apimachinery, pkg/util/proxy
		})
	}
	asking.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("asking the agents: %w", err)
	}
	var none error
	answered := false
	for _, n := range r.Nodes {
		switch {
		case n.State != nil:
			answered = true
		case apierrors.IsForbidden(n.err):
			none = fmt.Errorf("asking the agents: %w", n.err)
		case strings.HasSuffix(n.Error, "connection refused"):
			none = fmt.Errorf("no agent serves port %s: they need --metrics-listen, as in the component deploy/monitoring", f.port)
		}
		if n.Word == diagnose.OK {
			r.Fine++
		}
	}
	if !answered && none != nil {
		return none
	}
	gravity := func(word string) int { return slices.Index(diagnose.Words(), word) } // one of a later version comes first
	slices.SortFunc(r.Nodes, func(a, b fleetNode) int {
		return cmp.Or(cmp.Compare(gravity(a.Word), gravity(b.Word)), cmp.Compare(a.Node, b.Node))
	})
	return nil
}

func askAgent(ctx context.Context, client typedcorev1.CoreV1Interface, f *fleetFlags, n *fleetNode) (*agent.NodeState, error) {
	p := n.pod
	switch {
	case p == nil:
		return nil, errors.New("no agent runs here")
	case !answers(p):
		return nil, fmt.Errorf("its agent's pod %s is %s", p.Name, cmp.Or(p.Status.Reason, string(p.Status.Phase)))
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	body, err := client.Pods(f.namespace).ProxyGet("http", p.Name, f.port, agent.NodePath, nil).Stream(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer within %v", f.timeout)
		}
		return nil, err
	}
	defer func() { _ = body.Close() }()
	state := new(agent.NodeState)
	if err := json.NewDecoder(body).Decode(state); err != nil {
		return nil, fmt.Errorf("reading its agent's answer: %w", err)
	}
	if len(state.Findings) > 0 {
		state.Word = state.Findings[0].Word
	}
	switch {
	case state.SchemaVersion > agent.NodeSchema:
		return nil, fmt.Errorf("its agent answers in version %d, and this command knows %d", state.SchemaVersion, agent.NodeSchema)
	case state.SchemaVersion < 1 || state.Word == "" || len(state.Word) > maxWord:
		return nil, fmt.Errorf("something else than an agent answers at port %s", f.port)
	case state.Node != "" && state.Node != n.Node:
		return nil, fmt.Errorf("the agent of another node answers: %s", state.Node)
	}
	return state, nil
}

// fleetWidth is the usual width of a screen in columns: a node has one line, also in a pipe.
const fleetWidth = 80

// fleetText returns the screen: a line for each node that needs a person, and a summary.
func (a *app) fleetText(r *fleetReport, now time.Time) string {
	var out strings.Builder
	var rows [][]term.Cell
	names := shortNames(r.Nodes)
	for _, n := range r.Nodes {
		if n.Word == diagnose.OK {
			continue
		}
		what, since := n.Error, ""
		if n.State != nil && len(n.State.Findings) > 0 {
			first := n.State.Findings[0]
			what, since = first.Text, term.Age(now, first.Since)
			if first.Network != "" {
				what = first.Network + ": " + what
			}
			if more := len(n.State.Findings) - 1; more > 0 {
				what = fmt.Sprintf("(+%d) %s", more, what)
			}
		}
		rows = append(rows, []term.Cell{{Text: names[n.Node]}, {Text: n.Word}, {Text: since}, {Text: what}})
	}
	width := cmp.Or(a.screen.Width, fleetWidth)
	if len(rows) > 0 {
		head := []term.Column{{Title: "NODE"}, {Title: "STATE"}, {Title: "SINCE", Right: true}, {Title: "WHAT (-o json has all)"}}
		for line := range strings.Lines(term.Screen{}.Table(head, rows)) {
			if text := []rune(line); len(text) > width+1 { // with the line's end
				line = string(text[:width-1]) + "…\n"
			}
			out.WriteString(line)
		}
	}
	fmt.Fprintf(&out, "%d of %d nodes are fine.\n", r.Fine, len(r.Nodes))
	if r.Note != "" {
		fmt.Fprintln(&out, term.Screen{Width: width}.Fold(term.Clean(r.Note)))
	}
	return out.String()
}

// shortNames returns the names of nodes without their domains, or whole if that would make two the same.
func shortNames(nodes []fleetNode) map[string]string {
	short, first, clash := make(map[string]string), make(map[string]string), false
	for _, n := range nodes {
		label, _, _ := strings.Cut(n.Node, ".")
		_, err := netip.ParseAddr(n.Node)
		clash = clash || err == nil || first[label] != "" && first[label] != n.Node
		short[n.Node], first[label] = label, n.Node
	}
	for name := range short {
		if clash {
			short[name] = name
		}
	}
	return short
}
