// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// explain adds to an error of the API server what to do about it. Doing is the request,
// and permission the RBAC permission that it needs.
func explain(err error, doing, permission string) error {
	var status apierrors.APIStatus
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: this account lacks the %s for the whole cluster; grant it by a ClusterRole and a ClusterRoleBinding: %w",
			doing, permission, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the API server does not know this client: its token or certificate is missing, has expired, "+
			"or is of another cluster: %w", doing, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", doing, err)
	case !errors.As(err, &status):
		// No answer, or one that is not from a Kubernetes API server.
		return fmt.Errorf("%w: %s: no answer from the API server, is it up and its address right?: %w",
			podsource.ErrIncomplete, doing, err)
	case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err):
		return fmt.Errorf("%w: %s: the API server can't answer now: %w", podsource.ErrIncomplete, doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
