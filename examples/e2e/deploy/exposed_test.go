// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/metrics"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
)

var (
	errAway    = errors.New("server is away")
	errRefused = fmt.Errorf("%w: %w", gc.ErrRefused, errAway)
	errNoPods  = fmt.Errorf("%w: %w", gc.ErrRefused, gc.ErrNoPods)
)

// node is the label that the monitor adds to every series.
const node = "instance"

// served returns a function that gathers the current metrics.
func served(t *testing.T, c *metrics.Collector) func() []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	return func() []*dto.MetricFamily {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return families
	}
}

// report returns the report of a pass of one second, with an entry for each reason.
func report(started time.Time, reasons ...gc.Reason) gc.Report {
	r := gc.Report{
		Networks: []gc.Network{{Name: "podnet"}}, Started: started, Duration: time.Second,
		Sources: []gc.SourceReport{{Name: "cri", Entries: 3}},
	}
	for _, why := range reasons {
		r.Reservations = append(r.Reservations, entry(started, why, time.Minute))
	}
	return r
}

// entry returns a reservation of the given age.
func entry(started time.Time, why gc.Reason, age time.Duration) gc.Entry {
	made := &hostlocal.Reservation{Network: "podnet", IP: netip.MustParseAddr("10.0.0.2"), ContainerID: "abc", ReservedAt: started.Add(-age)}
	return gc.Entry{Reservation: made, Reason: why, Verdict: why.Verdict()}
}

// families returns the library's metrics after passes with every reason, and the agent's own.
func families(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	now := time.Unix(1_700_000_000, 0)
	c := metrics.New()
	c.SetRanges(map[string][]iprange.Set{"podnet": {{{First: netip.MustParseAddr("10.0.0.1"), Last: netip.MustParseAddr("10.0.0.10")}}}})
	released := report(now, gc.ReleasedLeak, gc.TooYoung)
	released.LockHeld, released.LongestHold = time.Millisecond, time.Millisecond
	c.OnReport(released, nil)
	c.OnReport(report(now, gc.Reasons()...), errAway)
	all := served(t, c)()
	agents := scrape(t)
	for _, name := range []string{"hostlocal_gc_build_info", "hostlocal_gc_dry_run"} {
		if agents[name] == nil {
			t.Fatalf("the agent does not serve %s", name)
		}
		all = append(all, agents[name])
	}
	for _, f := range all { // the agent serves the library's metrics
		if agents[f.GetName()] == nil && (f.GetType() == dto.MetricType_COUNTER && len(f.GetMetric()[0].GetLabel()) == 0) {
			t.Errorf("the agent does not serve %s", f.GetName())
		}
	}
	return all
}

// exposed returns the labels of each metric, and all values of each label.
func exposed(t *testing.T) map[string]map[string]map[string]bool {
	t.Helper()
	all := make(map[string]map[string]map[string]bool)
	add := func(name string, pairs []*dto.LabelPair, more ...string) {
		labels := all[name]
		if labels == nil {
			labels = map[string]map[string]bool{node: {}}
			all[name] = labels
		}
		for _, l := range pairs {
			if labels[l.GetName()] == nil {
				labels[l.GetName()] = make(map[string]bool)
			}
			labels[l.GetName()][l.GetValue()] = true
		}
		for _, name := range more {
			labels[name] = make(map[string]bool)
		}
	}
	for _, f := range families(t) {
		for _, m := range f.GetMetric() {
			if f.GetType() != dto.MetricType_HISTOGRAM {
				add(f.GetName(), m.GetLabel())
				continue
			}
			add(f.GetName()+"_bucket", m.GetLabel(), "le")
			add(f.GetName()+"_sum", m.GetLabel())
			add(f.GetName()+"_count", m.GetLabel())
		}
	}
	return all
}

// elsewhere returns the metrics of others that alerts may use: Prometheus's own for each target,
// and those of kube-state-metrics for each DaemonSet. The job is the monitor's.
func elsewhere(t *testing.T) map[string]map[string]map[string]bool {
	t.Helper()
	m := build(t, monitored)
	job := ""
	for _, r := range m.podMonitor.Spec.PodMetricsEndpoints[0].RelabelConfigs {
		if r.TargetLabel == "job" && len(r.SourceLabels) == 0 && r.Replacement != nil {
			job = *r.Replacement
		}
	}
	daemonSet := map[string]map[string]bool{"namespace": {m.daemonSet.Namespace: true}, "daemonset": {m.daemonSet.Name: true}}
	return map[string]map[string]map[string]bool{
		"up": {node: {}, "job": {job: true}},
		"kube_daemonset_status_desired_number_scheduled": daemonSet,
		"kube_daemonset_status_number_ready":             daemonSet,
	}
}

// Names, units and help texts follow Prometheus's conventions.
func TestMetricsLint(t *testing.T) {
	if problems, err := promlint.NewWithMetricFamilies(families(t)).Lint(); err != nil || len(problems) != 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// scraped is the answer of the agent on its address for metrics, with the settings of the
// manifests.
var scraped = sync.OnceValues(func() ([]byte, error) {
	binary, err := makeCommand(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "scraped")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	pods := filepath.Join(dir, "pods.json")
	if err := os.WriteFile(pods, []byte("[]"), 0o600); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "agent")
	cmd.Env = []string{
		"HOSTLOCAL_GC_DATA_DIR=" + dir, "HOSTLOCAL_GC_NETWORK=podnet storage", "HOSTLOCAL_GC_SOURCE=file:" + pods,
		"HOSTLOCAL_GC_LISTEN=127.0.0.1:0", "HOSTLOCAL_GC_METRICS_LISTEN=127.0.0.1:0",
	}
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { _ = cmd.Wait() }() // killed
	defer cancel()
	for lines := bufio.NewScanner(log); lines.Scan(); {
		m := regexp.MustCompile(`msg="Serving metrics" address=(\S+)`).FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m[1]+"/metrics", http.NoBody)
		if err != nil {
			return nil, err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		defer func() { _ = answer.Body.Close() }()
		return io.ReadAll(answer.Body)
	}
	return nil, errors.New("the agent serves no metrics")
})

// scrape parses scraped as Prometheus does.
func scrape(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	text, err := scraped()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]*dto.MetricFamily)
	decoder := expfmt.NewDecoder(bytes.NewReader(text), expfmt.NewFormat(expfmt.TypeTextPlain))
	for {
		f := new(dto.MetricFamily)
		if err := decoder.Decode(f); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		found[f.GetName()] = f
	}
}
