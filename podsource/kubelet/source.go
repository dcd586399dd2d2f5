// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube/kubepod"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
)

// DefaultSocket is where a kubelet with the default root directory
// (--root-dir=/var/lib/kubelet) serves its Pods API.
const DefaultSocket = "/var/lib/kubelet/pods-api/pods-api.sock"

// maxAnswer is the maximum size of an answer in bytes. A pod has at most about 1.5 MB, the limit of
// etcd, and rarely more than 20 kB.
const maxAnswer = 256 << 20

// A Source asks kubelet for its pods. It keeps no connection and no goroutine between two
// calls, so it has no Close, and kubelet may restart in between. Make it with [New].
type Source struct{ socket string }

// New returns a source for the kubelet at the given unix socket; "" is [DefaultSocket]. It does not
// access the socket, which need not exist yet. It is an error if the path is not absolute, or longer
// than the 107 bytes that a unix socket may have (unix(7)).
func New(socket string) (*Source, error) {
	socket = cmp.Or(socket, DefaultSocket)
	if !path.IsAbs(socket) || len(socket) > 107 {
		return nil, fmt.Errorf("making a kubelet source: the socket %q is not an absolute path of at most 107 bytes", socket)
	}
	return &Source{socket}, nil
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
// connection, takes too long, has too many callers or an answer of over 256 MiB. The error wraps
// [podsource.ErrNotHere] if kubelet does not serve the API: the socket is missing, or
// serves something else. A pod that can't be read is an error of the whole answer (R2). An
// address or a network status annotation that can't be read is none; the answer's Note names
// such a pod.
func (s *Source) Pods(ctx context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: s.String()}
	pods, err := s.ask(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // a gRPC status does not wrap it
		}
		return a, fmt.Errorf("asking kubelet for its pods on %s: %w", s.socket, err)
	}
	a.Pods, a.Networks, a.Note = pods, []string{podsource.EveryNetwork}, kubepod.Note(pods)
	return a, nil
}

// ask makes one connection and one call. If gRPC dialed itself, it would retry, and its
// error would not wrap that of the connection.
func (s *Source) ask(ctx context.Context) ([]podsource.Pod, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", s.socket)
	if err != nil {
		return nil, explainDial(err)
	}
	defer conn.Close() //nolint:errcheck // gRPC closes it, unless the context ended before it dialed
	client, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// When the connection is lost, gRPC gets the same one again, and the call fails.
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close() //nolint:errcheck // nothing was written
	var answer []byte
	if err := client.Invoke(ctx, listPods, nil, &answer, grpc.ForceCodec(raw{})); err != nil {
		return nil, explainCall(err)
	}
	return decode(answer)
}

// decode converts a ListPodsResponse, in which each pod is a marshalled v1.Pod.
func decode(message []byte) ([]podsource.Pod, error) {
	answer, err := parseResponse(message)
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
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
