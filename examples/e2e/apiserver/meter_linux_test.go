// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// A meter is a client with the admin's token that notes its requests. A test may act before each.
type meter struct {
	typedcorev1.CoreV1Interface
	before func(r *http.Request) // may be nil

	mu       sync.Mutex
	requests []string // "GET" of one object, or "LIST"
}

// newMeter returns a client that requests a content type. If it is empty, client-go chooses
// (protobuf if possible).
func newMeter(t *testing.T, contentType string) *meter {
	t.Helper()
	m := &meter{}
	config := cluster.config(adminToken)
	if contentType != "" {
		config.ContentType, config.AcceptContentTypes = contentType, contentType+",application/json"
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &countedTrip{m, next} })
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(httpClient.CloseIdleConnections)
	if m.CoreV1Interface, err = typedcorev1.NewForConfigAndClient(config, httpClient); err != nil {
		t.Fatal(err)
	}
	return m
}

// take returns the requests since the last call, in their order.
func (m *meter) take() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	requests := strings.Join(m.requests, " ")
	m.requests = nil
	return requests
}

type countedTrip struct {
	m    *meter
	next http.RoundTripper
}

func (c *countedTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.m.before != nil {
		c.m.before(r)
	}
	verb := r.Method
	if strings.HasSuffix(r.URL.Path, "/pods") {
		verb = "LIST"
	}
	c.m.mu.Lock()
	c.m.requests = append(c.m.requests, verb)
	c.m.mu.Unlock()
	return c.next.RoundTrip(r)
}
