// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
)

// The reasons of Events.
const (
	eventReleased = "LeakedAddressesReleased"
	eventRefused  = "LeakedAddressesNotJudged"
)

// maxEvent limits the variable part of a message, in bytes. The API server takes messages of 1024
// bytes.
const maxEvent = 600

// events records passes as Kubernetes Events on the node: at most one for each pass, however many
// addresses it concerns. client-go counts equal Events in one, and limits their rate.
//
// It never waits for the API server: Events are queued, and dropped where the queue is full or the
// server rejects them.
type events struct {
	client   typedcorev1.CoreV1Interface
	log      logr.Logger
	node     *corev1.ObjectReference
	recorder record.EventRecorder // nil before start
}

// newEvents reads the kubeconfig, or the in-cluster configuration. It makes no request.
func newEvents(o *Options) (*events, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reaching the API server for --events: %w", err)
	}
	config.Timeout = 10 * time.Second // so that a server that hangs is treated as one that is down
	config.UserAgent = "hostlocal-gc"
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the API server for --events: %w", err)
	}
	return &events{
		client: client, log: o.Passes.Logger,
		// kubectl describe node looks for the node's name as UID, as the kubelet sets it.
		node: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: o.Node, UID: types.UID(o.Node)},
	}, nil
}

// start sends Events until ctx ends.
func (e *events) start(ctx context.Context) {
	ctx = klog.NewContext(ctx, e.log) // client-go logs there why an Event could not be sent
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: e.client.Events("")})
	e.recorder = b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "hostlocal-gc", Host: e.node.Name})
}

// note records a pass. A refusal before the end of the hook is not recorded: when a node starts,
// sources become available one after the other.
func (e *events) note(report *gc.Report, err error, hookEnded bool) {
	switch text := releasedIn(report); {
	case text != "":
		e.recorder.Event(e.node, corev1.EventTypeNormal, eventReleased, "Released what no live pod holds: "+short(text, maxEvent))
	case errors.Is(err, gc.ErrRefused) && hookEnded:
		e.recorder.Event(e.node, corev1.EventTypeWarning, eventRefused, short(err.Error(), maxEvent))
	}
}

// releasedIn says how many addresses a pass released in which networks. It is empty if there are
// none.
func releasedIn(report *gc.Report) string {
	counts := make(map[string]int)
	for i := range report.Reservations {
		if e := &report.Reservations[i]; e.Verdict == gc.Released {
			counts[e.Network]++
		}
	}
	var parts []string
	for _, network := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, plural(counts[network], "address", "addresses")+" in network "+network)
	}
	return strings.Join(parts, ", ")
}

// short cuts text to n bytes.
func short(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
