// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/cnitest"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestMain runs the tests on a node that has been up for a year.
func TestMain(m *testing.M) {
	const up = 365 * 24 * time.Hour
	gctest.Uptime(nil, up)
	diagnose.Booted = func() time.Time { return time.Now().Add(-up) }
	os.Exit(m.Run())
}

var errAway = fmt.Errorf("%w: the source is away", gc.ErrRefused)

// sandbox makes up a sandbox's ID.
func sandbox(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(name))) }

func livePod(ips ...netip.Addr) []podsource.Pod {
	name := types.NamespacedName{Namespace: "shop", Name: "web"}
	return []podsource.Pod{{NamespacedName: name, ContainerIDs: []string{sandbox("live")}, IPs: ips}}
}

func entry(ip, id string, reason gc.Reason) gc.Entry {
	return gc.Entry{
		Reservation: &hostlocal.Reservation{Network: "n", IP: netip.MustParseAddr(ip), ContainerID: id, Owner: hostlocal.Owned},
		Reason:      reason, Verdict: reason.Verdict(),
	}
}

// logging makes an agent that logs at verbosity 1.
func logging(t *testing.T, o Options) (*Agent, *cnitest.Log) {
	t.Helper()
	log := new(cnitest.Log)
	o.Passes.Logger = funcr.New(func(_, line string) { fmt.Fprintln(log, line) }, funcr.Options{Verbosity: 1})
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a, log
}

// with returns the lines of a log, from a length on, that contain a text.
func with(log *cnitest.Log, from int, text string) (found []string) {
	for line := range strings.Lines(log.String()[from:]) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// running runs an agent without listeners until end is called, or the test ends. Values on hangup are
// SIGHUPs.
func running(t *testing.T, o Options) (a *Agent, log *cnitest.Log, hangup chan os.Signal, end func()) {
	t.Helper()
	a, log = logging(t, o)
	hangup = make(chan os.Signal)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, hangup); close(ended) }()
	end = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return a, log, hangup, end
}

// ask sends a request for a host to all endpoints, or to those beside the metrics.
func ask(handler http.Handler, method, host, path, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func get(a *Agent, path string) *httptest.ResponseRecorder {
	return ask(a.handler(), http.MethodGet, "127.0.0.1", path, "")
}
