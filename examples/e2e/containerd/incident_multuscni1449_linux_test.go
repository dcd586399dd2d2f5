// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Multus passes the whole configuration of a conflist to a delegate in ADD, but in DEL only the parts
// that it decodes. So host-local gets no range, and fails. If the pod is gone from the API server, or
// Multus' own file of the pod is damaged, Multus reports success and does nothing.
func TestIncident_multuscni1449(t *testing.T) {
	const size, running, damaged = 6, 1, 2
	const said = "no IP ranges specified"
	n := newNode(t, current(), func(n *node) { n.pool = size })
	gone := n.behindMultus()
	n.runAgent()
	live := n.runSome("live", running)
	var ended []pod
	for i := range size - running {
		p := n.run(fmt.Sprint("ended-", i))
		if i < damaged {
			n.must(os.Truncate(filepath.Join("/var/lib/cni/multus", p.id), 0))
		} else {
			if err := n.tryStop(t.Context(), p.id); err == nil || !strings.Contains(err.Error(), said) {
				t.Fatalf("stopping %s must fail with %q: %v", p.name, said, err)
			}
			gone.Store(p.name, true)
		}
		n.remove(p.id)
		ended = append(ended, p)
	}
	same(t, "reservations", "no DEL called host-local", holding(append(ended, live...)...), n.reservations(n.network))

	o := n.endOutage(live, "each DEL has succeeded for containerd's libcni, and Multus takes all entries of its own cache as valid",
		"--source", "cnicache:"+multusResults)

	incident{
		Issues: []string{"k8snetworkplumbingwg/multus-cni#1449", "k8snetworkplumbingwg/multus-cni#1087"},
		Leak: "Multus hands a delegate that is a conflist a DEL without its ranges. Once the pod is gone from the API server, or where " +
			"Multus' own file of the pod is damaged, it reports success and calls no delegate.",
		Advice: "For the first multus-cni#1521, which was merged after v4.2.4. For the second, which is closed as stale, none.",
		Alone: fmt.Sprintf("%d of %d first DELs fail (`%s`). Then all %d pods are removed with success, and their addresses stay: no pod starts on the pool "+
			"of %d, and none after a restart of containerd. libcni's GC succeeds and frees %d: it calls Multus, which takes all entries of its own cache as valid.",
			len(ended)-damaged, len(ended), said, len(ended), size, o.freed),
		Ours: fmt.Sprintf("%s, the latter also with Multus' directory: %d of %d leaked addresses released, %d pods start, %d live pod keeps its own.",
			passWithRuntime, o.released, o.leaked, o.started, running),
		Versions: append(n.versions("multus", "containerd", "containerd:github.com/containernetworking/cni", "host-local"),
			"instead of an API server a server of the test, which has the pods"),
	}.report(t)
}

// multusResults is the cache of Multus' libcni.
const multusResults = "/var/lib/cni/multus/results"

// behindMultus makes the pods' network one to which Multus delegates, with the file of a conflist.
// The API server of Multus is a server of the test, without the pods whose names are in gone. The
// CNI version is one with which libcni's GC calls plugins.
func (n *node) behindMultus() (gone *sync.Map) {
	n.t.Helper()
	gone, n.multus = new(sync.Map), true
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// /api/v1/namespaces/NAMESPACE/pods/NAME, and /status below it
		name := path.Base(strings.TrimSuffix(r.URL.Path, "/status"))
		w.Header().Set("Content-Type", "application/json")
		if _, ok := gone.Load(name); ok {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			return
		}
		fmt.Fprintf(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":%q,"name":%q,"uid":%q}}`, namespace, name, "uid-"+name)
	}))
	n.t.Cleanup(api.Close)
	n.must(os.Symlink(n.tool("multus"), n.path("cni/bin/multus")))
	kubeconfig := n.path("multus.kubeconfig")
	n.must(os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"here",
		"contexts":[{"name":"here","context":{"cluster":"here","user":"me"}}],"users":[{"name":"me","user":{}}],
		"clusters":[{"name":"here","cluster":{"server":%q}}]}`, api.URL), 0o600))
	delegate := n.path("pods.conflist")
	n.must(os.Rename(n.path("cni/conf/10-pods.conflist"), delegate))
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "multus", "plugins": []any{
		map[string]any{"type": "multus", "kubeconfig": kubeconfig, "clusterNetwork": delegate},
	}})
	n.must(err)
	n.must(os.WriteFile(n.path("cni/conf/00-multus.conflist"), conf, 0o600))
	n.awaitNetwork("multus")
	return gone
}
