// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"sync/atomic"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
)

// DefaultSocket is where a kubelet with the default root directory
// (--root-dir=/var/lib/kubelet) serves its Pods API.
const DefaultSocket = "/var/lib/kubelet/pods-api/pods-api.sock"

// DefaultMaxBytes is the default of Options.MaxBytes.
const DefaultMaxBytes = 256 << 20

// Options configure a Source. The zero value is the safe default.
type Options struct {
	// MaxBytes limits the size of an answer; a larger one is an error. A pod has at most
	// about 1.5 MB, the limit of etcd, and rarely more than 20 kB. Zero is
	// [DefaultMaxBytes].
	MaxBytes int
}

// A Source asks kubelet for its pods. It keeps no connection and no goroutine between two
// calls, so it has no Close, and kubelet may restart in between. Make it with [New].
type Source struct {
	socket string
	opts   Options
}

// maxSocket is the maximum length of the path of a unix socket (Linux, unix(7): 108 bytes
// with the terminating null byte).
const maxSocket = 107

// New returns a source for the kubelet at the given unix socket, an absolute path; "" is
// [DefaultSocket]. It does not access the socket, which need not exist yet. The error names
// everything that is wrong with the arguments.
func New(socket string, opts Options) (*Source, error) {
	var errs []error
	switch {
	case socket == "":
		socket = DefaultSocket
	case !path.IsAbs(socket):
		errs = append(errs, fmt.Errorf("the socket %q is not an absolute path", socket))
	case len(socket) > maxSocket:
		errs = append(errs, fmt.Errorf("the path of the socket has %d bytes; it must not have more than %d: %s", len(socket), maxSocket, socket))
	}
	if opts.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("Options.MaxBytes is %d; it must not be negative", opts.MaxBytes))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("making a kubelet source: %w", errors.Join(errs...))
	}
	opts.MaxBytes = cmp.Or(opts.MaxBytes, DefaultMaxBytes)
	return &Source{socket: socket, opts: opts}, nil
}

// String returns the name of the source, also for one that does not answer.
func (s *Source) String() string { return "kubelet" }

// Pods returns all pods that kubelet knows, also static and finished ones, converted by
// [kubepod.Convert].
//
// The pods have no container IDs. The answer lists Kubernetes pods in every network, so
// reservations of containers that are no sandboxes are foreign (R14).
//
// The error wraps [podsource.ErrIncomplete] if a later call may succeed: kubelet has just
// started and does not know all pods yet, nothing listens on its socket, it closes the
// connection, takes too long or has too many callers. The error wraps
// [podsource.ErrNotHere] if kubelet does not serve the API: the socket is missing, or
// serves something else. A pod that can't be read is an error of the whole answer (R2). An
// address or a network status annotation that can't be read is none; the answer's Note names
// such a pod.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: s.String()}
	pods, err := s.ask(ctx)
	if err != nil {
		return a, fmt.Errorf("asking kubelet for its pods on %s: %w", s.socket, err)
	}
	a.Pods, a.Networks, a.Note = pods, []string{podsource.EveryNetwork}, kubepod.Note(pods)
	return a, nil
}

func (s *Source) ask(ctx context.Context) ([]podsource.Pod, error) {
	if s.socket == "" {
		return nil, errors.New("the source was not made with New")
	}
	answer, err := s.list(ctx)
	switch {
	case err == nil:
		return decode(answer)
	case ctx.Err() != nil:
		return nil, ctx.Err() // a gRPC status does not wrap the error of the context
	}
	return nil, err
}

// list makes one connection and one call. If gRPC dialed itself, it would retry, and its
// error would not wrap that of the connection.
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
			if dialed.Swap(true) { // gRPC dials again when a server closes the connection
				return nil, errors.New("the connection was lost")
			}
			return conn, nil
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(s.opts.MaxBytes)),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close() //nolint:errcheck // nothing was written
	var pods [][]byte
	if err := client.Invoke(ctx, listPods, nil, &pods, grpc.ForceCodec(wire{})); err != nil {
		return nil, explainCall(err)
	}
	return pods, nil
}

// decode converts the answer of kubelet, in which each pod is a marshalled v1.Pod.
func decode(answer [][]byte) ([]podsource.Pod, error) {
	pods := make([]podsource.Pod, 0, len(answer))
	for i, text := range answer {
		var object corev1.Pod
		if err := object.Unmarshal(text); err != nil {
			return nil, fmt.Errorf("pod %d of %d can't be read: %w", i+1, len(answer), err)
		}
		// Kubelet puts its current status into the object from the API server. The
		// managed fields are about the old status.
		object.ManagedFields = nil
		if object.Name == "" || object.UID == "" { // an empty message decodes to an empty pod
			return nil, fmt.Errorf("pod %d of %d: it has the name %q and the UID %q, and must have both", i+1, len(answer), object.Name, object.UID)
		}
		pods = append(pods, kubepod.Convert(&object))
	}
	return pods, nil
}
