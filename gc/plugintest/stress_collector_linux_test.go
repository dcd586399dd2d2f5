// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

var stressFor = flag.Duration("stress.for", time.Minute, "how long TestStress adds and deletes; 5s with -short")

const (
	stressEnv     = "PLUGINTEST_COLLECTOR" // set in a collector's process: what its source names
	stressWorkers = 12
	// The rest of the minimum age when an ADD has ended. Reservations and starts are
	// set back by stressAged, so that the test takes seconds and not minutes.
	stressMinAge = 2 * time.Second
	stressAged   = gc.DefaultMinAge - stressMinAge
	// How late the truth may show a change, and how old its file may be. Together
	// they stay below stressMinAge (A2). A collector refuses an older file, so the
	// test holds on a busy machine, too.
	stressLate, stressStale = time.Second, 500 * time.Millisecond
)

// The collectors, by what their sources name.
const byID, byAddress = "container ID", "address"

// The violations that the test counts.
const (
	liveReleased, heldTwice     = "live released", "held twice"
	pluginError, collectorError = "errors of the plugin", "errors of collectors"
	leakLeft                    = "leaks left"
)

// A container is one as the truth shows it.
type container struct {
	ID    string
	Since time.Time  // when its ADD began
	IP    netip.Addr // the first of its addresses, or none while that is not known

	// When the truth begins to show it, shows its address, and stops to show it. Zero is
	// unknown yet.
	shown, status, gone time.Time
}

// A truth has the live containers, with a delay. All sources read it from a file.
type truth struct {
	At   time.Time
	Live []container
}

// truthSource reads the truth, and names each container only by its ID, or only by its first
// address.
func truthSource(path string, addresses bool) podsource.Source {
	return podsource.Func(func(context.Context) ([]podsource.Pod, error) {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var now truth
		if err := json.Unmarshal(content, &now); err != nil {
			return nil, err
		}
		if age := time.Since(now.At); age > stressStale {
			return nil, fmt.Errorf("%w: it is %s old", podsource.ErrIncomplete, age)
		}
		pods := []podsource.Pod{someone}
		for _, r := range now.Live {
			switch {
			case !addresses:
				pods = append(pods, podsource.Pod{ContainerIDs: []string{r.ID}})
			case r.IP.IsValid():
				pods = append(pods, podsource.Pod{IPs: []netip.Addr{r.IP}})
			default:
				pods = append(pods, podsource.Pod{StartedAt: r.Since.Add(-stressAged)})
			}
		}
		return pods, nil
	})
}

// collected is the report of a collector's process.
type collected struct {
	Passes   int
	Stale    int      // passes that refused the truth as too old
	Released []string // "address container"
	Errors   []string
}

// collect runs in a collector's process. It runs passes back to back until its standard
// input ends, and then writes its report.
func collect(t *testing.T, names string) {
	source := truthSource(os.Getenv(stressEnv+"_TRUTH"), names == byAddress)
	reconciler, err := gc.New(hostlocal.New(os.Getenv(stressEnv+"_DIR")), []string{"podnet"}, source, gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end, too
	}()
	var did collected
	for {
		report, err := reconciler.Reconcile(t.Context())
		did.Passes++
		switch {
		case errors.Is(err, podsource.ErrIncomplete):
			did.Stale++
		case err != nil:
			did.Errors = append(did.Errors, err.Error())
		}
		for _, e := range report.Reservations {
			switch {
			case e.Verdict == gc.Released:
				did.Released = append(did.Released, e.IP.String()+" "+e.ContainerID)
			case err == nil && (e.Verdict == gc.Failed || e.Verdict == gc.Malformed):
				did.Errors = append(did.Errors, fmt.Sprintf("%s of %s: %s (%s)", e.IP, e.ContainerID, e.Verdict, e.Reason))
			}
		}
		select {
		case <-ended:
			if err := json.NewEncoder(os.Stdout).Encode(did); err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

// startCollector starts a collector in a process of its own. finish ends it and returns its
// report. It also ends with the test, and with the test's process, which has the other end
// of its standard input.
func startCollector(t *testing.T, p *plugintest.Plugin, truth, names string) (finish func() collected) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestStress$") // killed before the clean-up
	cmd.Env = append(os.Environ(), stressEnv+"="+names, stressEnv+"_DIR="+p.DataDir, stressEnv+"_TRUTH="+truth,
		"TMPDIR="+t.TempDir()) // it leaves a directory there when it is killed
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait := sync.OnceValue(cmd.Wait)
	t.Cleanup(func() { _ = wait() }) // finish returns the error
	return func() (did collected) {
		_ = stdin.Close() // an error means that the process has ended, which wait returns
		stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer stuck.Stop()
		err := wait()
		if err == nil {
			err = json.NewDecoder(strings.NewReader(stdout.String())).Decode(&did)
		}
		if err != nil {
			t.Errorf("collector by %s: %v\n%s%s", names, err, stdout.String(), stderr.String())
		}
		return did
	}
}
