// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A pipeListener accepts in-memory connections, since synctest's clock does not wait for a network.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

// Clients that keep their connections open delay the agent's end by the grace time at most.
func TestServeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := serving(t, bare(Options{}))
		half := l.dial() // sends half a request, and waits
		defer func() { _ = half.Close() }()
		go func() { _, _ = io.WriteString(half, "GET /heal") }()
		for _, say := range []string{
			"GET /healthz HTTP/1.1\r\nHost: [::1]\r\n\r\n", // reads no answer, and a pipe has no buffer
			"POST /metrics HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 100\r\n\r\nslow",
		} {
			c := l.dial()
			defer func() { _ = c.Close() }()
			go func() { _, _ = io.WriteString(c, say) }()
		}
		synctest.Wait()
		begun := time.Now()
		stop()
		_, _ = io.Copy(io.Discard, half) // until the agent closes it
		if took := time.Since(begun); took > graceTime+50*time.Millisecond {
			t.Errorf("it took %v of false time", took)
		}
	})
}

// A pass that hangs, on its disk for example, delays the agent's end by less than a second.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{}
		hangs := make(chan struct{})
		defer close(hangs)
		var working sync.WaitGroup
		working.Go(func() { <-hangs })
		begun := time.Now()
		a.end(&working)
		if took := time.Since(begun); took >= time.Second {
			t.Errorf("it took %v of false time", took)
		}
	})
}
