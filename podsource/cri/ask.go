// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// parallel is the number of concurrent requests for statuses.
const parallel = 8

var (
	// A runtime that stops removes its socket, while its sandboxes run on. So this
	// is not podsource.ErrNotHere, for which Fallback would use another source.
	errNoSocket = fmt.Errorf("%w: there is no socket", podsource.ErrIncomplete)
	errNoCRI    = errors.New("the server does not serve version 1 of the CRI; " +
		"is it too old, or its CRI plugin disabled?")
)

// ask returns the list of one runtime. It closes its connection before it returns.
func (s *Source) ask(ctx context.Context, e endpoint) ([]podsource.Pod, error) {
	conn, err := dial(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // in case gRPC has not used it
	cc, err := client(conn, s.opts.MaxAnswer)
	if err != nil {
		return nil, err
	}
	defer func() { _ = cc.Close() }() // no call is in progress
	runtime := runtimeapi.NewRuntimeServiceClient(cc)

	list, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing sandboxes: %w", explain(ctx, err))
	}
	var statuses []*runtimeapi.PodSandboxStatus
	if s.opts.WithStatus {
		if statuses, err = askStatuses(ctx, runtime, list.GetItems()); err != nil {
			return nil, err
		}
	}
	return podsOf(list.GetItems(), statuses)
}

// dial connects to a runtime. If gRPC dialed itself, it would retry, and its error would not
// wrap that of the connection.
func dial(ctx context.Context, e endpoint) (net.Conn, error) {
	conn, err := dialEndpoint(ctx, e)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("connecting: %w", ctx.Err())
	case errors.Is(err, os.ErrDeadlineExceeded): // of the context, just before it ends
		return nil, fmt.Errorf("connecting: %w", context.DeadlineExceeded)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, errNoSocket
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EAGAIN):
		return nil, fmt.Errorf("%w: the socket exists, but nothing listens on it: %w", podsource.ErrIncomplete, err)
	}
	return nil, err
}

// client makes a client of a connection. It does not connect again: calls fail when the
// connection is lost.
func client(conn net.Conn, maxAnswer int) (*grpc.ClientConn, error) {
	only := make(chan net.Conn, 1)
	only <- conn
	return grpc.NewClient("passthrough:///cri",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case conn := <-only:
				return conn, nil
			default:
				return nil, errors.New("the connection was lost")
			}
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a socket on this node
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
	)
}

// explain adds to a gRPC error what it means here.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// While containerd 1.6 recovers, its error has this message and no code.
	if strings.Contains(status.Convert(err).Message(), "server is not initialized yet") {
		return fmt.Errorf("%w: the runtime is recovering: %w", podsource.ErrIncomplete, err)
	}
	switch status.Code(err) {
	case codes.Unavailable:
		return fmt.Errorf("%w: the runtime is not ready: %w", podsource.ErrIncomplete, err)
	case codes.Unimplemented:
		return fmt.Errorf("%w (%w)", errNoCRI, err)
	case codes.ResourceExhausted:
		return fmt.Errorf("%w (if its answer is too long, raise Options.MaxAnswer)", err)
	case codes.DeadlineExceeded:
		return fmt.Errorf("%w: no answer in time: %w", podsource.ErrIncomplete, err)
	}
	return err
}

// askStatuses returns the status of each sandbox, and nil for those that were removed since
// they were listed. The first error is the error of the whole (R2).
func askStatuses(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, items []*runtimeapi.PodSandbox) ([]*runtimeapi.PodSandboxStatus, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	statuses := make([]*runtimeapi.PodSandboxStatus, len(items))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(parallel, len(items)) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(items) {
					return
				}
				status, err := askStatus(ctx, runtime, items[i].GetId())
				if err != nil {
					cancel(err)
				}
				statuses[i] = status
			}
		}()
	}
	workers.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return statuses, nil
}

// askStatus repeats the call once after an error without a code. containerd checks the network
// namespace of a sandbox in two steps, and fails when it is removed between them (cnins.GetNS
// as of v2.4.2).
func askStatus(ctx context.Context, runtime runtimeapi.RuntimeServiceClient, id string) (*runtimeapi.PodSandboxStatus, error) {
	request := &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id}
	answer, err := runtime.PodSandboxStatus(ctx, request)
	if status.Code(err) == codes.Unknown {
		answer, err = runtime.PodSandboxStatus(ctx, request)
	}
	switch {
	case status.Code(err) == codes.NotFound:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("asking for the status of sandbox %s: %w", id, explain(ctx, err))
	case answer.GetStatus() == nil:
		return nil, fmt.Errorf("the answer about sandbox %s has no status", id)
	}
	return answer.GetStatus(), nil
}
