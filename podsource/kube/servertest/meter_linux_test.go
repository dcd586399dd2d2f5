// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// A meter is a client with the admin's token that counts requests and bytes. A test may act
// before each request.
type meter struct {
	typedcorev1.CoreV1Interface
	before func(r *http.Request) // may be nil

	wire atomic.Int64 // bytes received, with TLS, headers and compression

	mu       sync.Mutex
	requests []string // "GET" of one object, or "LIST"
	bodies   int64    // bytes of the answers, as they are decoded
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
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &countedConn{conn, &m.wire}, err
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

// take returns the counts since the last call: the requests in order, the bytes of their
// answers, and the bytes received.
func (m *meter) take() (requests string, bodies, wire int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	requests, bodies = strings.Join(m.requests, " "), m.bodies
	m.requests, m.bodies = nil, 0
	return requests, bodies, m.wire.Swap(0)
}

type countedConn struct {
	net.Conn
	wire *atomic.Int64
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.Add(int64(n))
	return n, err
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
	response, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = &countedBody{response.Body, c.m}
	return response, nil
}

type countedBody struct {
	io.ReadCloser
	m *meter
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.m.mu.Lock()
	b.m.bodies += int64(n)
	b.m.mu.Unlock()
	return n, err
}

// kib formats a number of bytes.
func kib(n int64) string { return fmt.Sprintf("%d KiB", (n+1023)/1024) }
