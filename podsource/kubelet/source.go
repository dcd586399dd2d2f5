// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
)

// DefaultSocket is where a kubelet with the default root directory
// (--root-dir=/var/lib/kubelet) serves its Pods API.
const DefaultSocket = "/var/lib/kubelet/pods-api/pods-api.sock"

// What the zero Options stand for.
const (
	DefaultTimeout  = 10 * time.Second
	DefaultMaxBytes = 256 << 20
)

// Options say how a Source asks. The zero value is the safe default.
type Options struct {
	// Timeout is how long kubelet may take to answer, besides what the context
	// allows. Zero is [DefaultTimeout].
	Timeout time.Duration
	// MaxBytes is how long an answer may be; a longer one is an error. A pod is at
	// most about 1.5 MB, as etcd keeps no larger object, and seldom above 20 kB.
	// Zero is [DefaultMaxBytes].
	MaxBytes int
}

// A Source asks kubelet for its pods. It keeps no connection and no goroutine
// from one question to the next, so there is nothing to close, and kubelet may be
// restarted in between.
type Source struct {
	socket string
	opts   Options
}

// New returns the source that asks on the given unix socket; "" is
// [DefaultSocket]. It touches nothing: whether the socket exists is seen when the
// source is asked.
func New(socket string, opts Options) *Source {
	if socket == "" {
		socket = DefaultSocket
	}
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = DefaultMaxBytes
	}
	return &Source{socket: socket, opts: opts}
}

// Pods returns all pods that kubelet knows of, as [kubepod.Convert] makes them:
// also static pods, and pods that have finished.
//
// The pods come without container IDs. The answer declares that those have 64
// hexadecimal digits, so that what other containers own counts as foreign (R14).
//
// The error wraps [podsource.ErrIncomplete] where kubelet is there but does not
// answer now, so that waiting may help: it has just been started and does not
// know all pods yet, nobody listens on its socket, it closes the connection,
// takes too long or has too many callers. The error wraps [podsource.ErrNotHere]
// where kubelet does not serve the API: the socket is missing, or the service
// behind it is another. One pod that can't be read is an error of the whole
// answer (R2).
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "kubelet"}
	pods, err := s.ask(ctx)
	if err != nil {
		return a, fmt.Errorf("asking kubelet for its pods on %s: %w", s.socket, err)
	}
	a.Pods, a.Forms = pods, []podsource.Form{podsource.Hex64}
	return a, nil
}

func (s *Source) ask(outer context.Context) ([]podsource.Pod, error) {
	ctx, cancel := context.WithTimeout(outer, s.opts.Timeout)
	defer cancel()
	answer, err := s.list(ctx)
	switch {
	case err == nil:
		return decode(answer)
	case outer.Err() != nil:
		return nil, outer.Err() // the status of a call does not wrap it
	}
	return nil, err
}

// list makes one connection and one call. gRPC would dial by itself, and again,
// and would put the reason why it could not into words alone.
func (s *Source) list(ctx context.Context) ([][]byte, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	if err != nil {
		return nil, explainDial(err)
	}
	defer conn.Close() //nolint:errcheck // gRPC closes it, unless the context ended before it dialed
	var dialed atomic.Bool
	client, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if dialed.Swap(true) { // a server that goes away makes gRPC dial again
				return nil, errors.New("the connection was lost")
			}
			return conn, nil
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(s.opts.MaxBytes)),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close() //nolint:errcheck // there is nothing to lose
	var pods [][]byte
	if err := client.Invoke(ctx, listPods, nil, &pods, grpc.ForceCodec(wire{})); err != nil {
		return nil, explainCall(err)
	}
	return pods, nil
}

// decode makes pods of what kubelet answered: each is a marshalled v1.Pod.
func decode(answer [][]byte) ([]podsource.Pod, error) {
	pods := make([]podsource.Pod, 0, len(answer))
	for i, text := range answer {
		var object corev1.Pod
		if err := object.Unmarshal(text); err != nil {
			return nil, fmt.Errorf("pod %d of %d can't be read: %w", i+1, len(answer), err)
		}
		// Kubelet puts the status as it is now into the object as it got it
		// from the API server. The managed fields tell of the old status.
		object.ManagedFields = nil
		pod, err := kubepod.Convert(&object)
		if err != nil {
			return nil, fmt.Errorf("pod %d of %d: %w", i+1, len(answer), err)
		}
		pods = append(pods, pod)
	}
	return pods, nil
}
