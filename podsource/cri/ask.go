// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The limits of requests for statuses. A runtime has most of a status in memory, so one that
// takes a second hangs, as on a network namespace or a shim that does not respond.
const (
	parallel  = 8        // concurrent requests
	maxAnswer = 64 << 20 // bytes; gRPC's 4 MiB are too few for some nodes, and kubelet and containerd allow 16
	// statusesTime is for all statuses of a runtime together, if that leaves two thirds of the
	// time until the context's deadline to what else has to be done until then. One status
	// may take a fifth of it. So 40 that hang, 8 at a time, use it up; with fewer the others
	// are known.
	statusesTime = 5 * time.Second
)

var (
	// A runtime that stops removes its socket, while its sandboxes run on. So this
	// is not podsource.ErrNotHere, for which Fallback would use another source.
	errNoSocket = fmt.Errorf("%w: there is no socket", podsource.ErrIncomplete)
	errNoCRI    = errors.New("the server does not serve version 1 of the CRI; " +
		"is it too old, or its CRI plugin disabled?")
)

// ask returns the pods of one runtime, and a note if it has given no status of some. It closes its
// connection before it returns.
func (s *Source) ask(ctx context.Context, e endpoint) (pods []podsource.Pod, note string, err error) {
	conn, err := dial(ctx, e)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = conn.Close() }() // in case gRPC has not used it
	cc, err := client(conn)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = cc.Close() }() // no call is in progress
	return listPods(ctx, runtimeapi.NewRuntimeServiceClient(cc), s.opts.WithStatus)
}

// listPods calls a runtime. That it can't list its containers is an error, as for sandboxes (R2):
// one of them may own an address. It has both lists in memory.
func listPods(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, withStatus bool) ([]podsource.Pod, string, error) {
	sandboxes, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, "", fmt.Errorf("listing sandboxes: %w", explain(ctx, err))
	}
	containers, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, "", fmt.Errorf("listing containers: %w", explain(ctx, err))
	}
	pods, err := podsOf(sandboxes.GetItems(), containers.GetContainers())
	if err != nil || !withStatus {
		return pods, "", err
	}
	errs := addStatuses(ctx, runtime, pods)
	if ctx.Err() != nil {
		return nil, "", fmt.Errorf("getting the statuses of sandboxes: %w", ctx.Err())
	}
	dropStale(pods)
	return pods, noteOn(pods, errs), nil
}

// dial connects to a runtime. If gRPC dialed itself, it would retry, and its error would not
// wrap that of the connection.
func dial(ctx context.Context, e endpoint) (conn net.Conn, err error) {
	if e.pipe {
		conn, err = dialPipe(ctx, e.address)
	} else {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", e.address)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, errNoSocket
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EAGAIN):
		return nil, fmt.Errorf("%w: the socket exists, but nothing listens on it: %w", podsource.ErrIncomplete, err)
	}
	return conn, err
}

// client makes a client of a connection. When the connection is lost calls fail: gRPC gets the same
// one again.
func client(conn net.Conn) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///cri",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a socket on this node
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
	)
}

// explain adds to a gRPC error what it means here.
func explain(ctx context.Context, err error) error {
	code := status.Code(err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case code == codes.Unavailable, code == codes.DeadlineExceeded,
		// While containerd 1.6 recovers, its error has this message and no code.
		strings.Contains(status.Convert(err).Message(), "server is not initialized yet"):
		return fmt.Errorf("%w: the runtime is not ready: %w", podsource.ErrIncomplete, err)
	case code == codes.Unimplemented:
		return fmt.Errorf("%w (%w)", errNoCRI, err)
	}
	return err
}

// addStatuses adds to each pod what the status of its sandbox says, and returns an error for each
// whose addresses are then not all known (hazard 90).
func addStatuses(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, pods []podsource.Pod) []error {
	limit := statusesTime
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/3)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	errs := make([]error, len(pods))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(parallel, len(pods)) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for i := next.Add(1) - 1; i < int64(len(pods)); i = next.Add(1) - 1 {
				one, cancel := context.WithTimeout(ctx, limit/5)
				errs[i] = addStatus(one, runtime, &pods[i])
				cancel()
			}
		}()
	}
	workers.Wait()
	return errs
}

// addStatus repeats the call once after an error without a code. containerd checks the network
// namespace of a sandbox in two steps, and fails when it is removed between them (cnins.GetNS
// as of v2.4.2). A sandbox that was removed since it was listed has no addresses.
func addStatus(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, p *podsource.Pod) error {
	request := &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ContainerIDs[0]}
	answer, err := runtime.PodSandboxStatus(ctx, request)
	if status.Code(err) == codes.Unknown {
		answer, err = runtime.PodSandboxStatus(ctx, request)
	}
	switch {
	case status.Code(err) == codes.NotFound:
		return nil
	case err != nil && (ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded): // by the server's clock
		err = errors.New("no answer in time")
	case err == nil && answer.GetStatus() == nil:
		err = errors.New("the answer has no status")
	case err == nil:
		setReady(p, answer.GetStatus().GetState())
		p.HostNetwork = answer.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
		p.IPs, err = addresses(answer.GetStatus().GetNetwork())
	}
	p.MoreIPs = err != nil
	return err
}
