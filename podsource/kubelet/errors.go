// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errTimeout is returned when Options.Timeout has passed.
var errTimeout = fmt.Errorf("%w: %w: kubelet hangs, or Options.Timeout is too short",
	podsource.ErrIncomplete, context.DeadlineExceeded)

// explainDial says what an error of connecting to the socket means. That of a
// missing socket is told in words alone, so that nobody takes it for the error of
// some other file.
func explainDial(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s; kubelet serves it from Kubernetes 1.37 on (feature gate PodsAPI), below its --root-dir; "+
			"in a container the directory must be mounted", podsource.ErrNotHere, err.Error())
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; only root may ask: run as root, and see to SELinux or AppArmor", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w; kubelet may be restarting; if it no longer serves this socket, remove the file",
			podsource.ErrIncomplete, err)
	case errors.Is(err, syscall.EAGAIN): // Linux, where a queue of connections is full
		return fmt.Errorf("%w: %w; kubelet accepts no connection; does it hang?", podsource.ErrIncomplete, err)
	}
	return err
}

// explainCall says what the status of a call means.
func explainCall(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.FailedPrecondition:
		return fmt.Errorf("%w: kubelet does not know all its pods yet: %w", podsource.ErrIncomplete, err)
	case codes.Unavailable:
		return fmt.Errorf("%w: is kubelet being restarted? %w", podsource.ErrIncomplete, err)
	case codes.DeadlineExceeded: // ours, or the same one by the server's clock
		return errTimeout
	case codes.ResourceExhausted:
		if strings.Contains(s.Message(), "larger than max") { // gRPC's word, on this side
			return fmt.Errorf("the answer is too long: %w; raise Options.MaxBytes", err)
		}
		return fmt.Errorf("%w: kubelet limits how often it is asked: %w", podsource.ErrIncomplete, err)
	case codes.Unimplemented:
		return fmt.Errorf("%w: the server does not serve the Pods API v1alpha1: %w", podsource.ErrNotHere, err)
	}
	return err
}
