// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// explainDial adds to an error of connecting to the socket what to do about it. It does not
// wrap fs.ErrNotExist, which might look like a missing file of another kind.
func explainDial(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s; kubelet serves it from Kubernetes 1.37 on (feature gate PodsAPI), below its --root-dir; "+
			"in a container the directory must be mounted", podsource.ErrNotHere, err.Error())
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; only root may connect: run as root, and check SELinux or AppArmor", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w; kubelet may be restarting; if it no longer serves this socket, remove the file",
			podsource.ErrIncomplete, err)
	case errors.Is(err, syscall.EAGAIN): // on Linux, when the queue of connections is full
		return fmt.Errorf("%w: %w; kubelet accepts no connection; does it hang?", podsource.ErrIncomplete, err)
	}
	return err
}

// explainCall adds to the status of a call what it means here.
func explainCall(err error) error {
	switch status.Code(err) {
	case codes.FailedPrecondition:
		return fmt.Errorf("%w: kubelet does not know all its pods yet: %w", podsource.ErrIncomplete, err)
	case codes.Unavailable, codes.DeadlineExceeded: // the latter by the server's clock
		return fmt.Errorf("%w: is kubelet being restarted, or does it hang? %w", podsource.ErrIncomplete, err)
	case codes.ResourceExhausted:
		return fmt.Errorf("%w: kubelet limits the rate of calls, or its answer is too long: %w", podsource.ErrIncomplete, err)
	case codes.Unimplemented:
		return fmt.Errorf("%w: the server does not serve the Pods API v1alpha1: %w", podsource.ErrNotHere, err)
	}
	return err
}
