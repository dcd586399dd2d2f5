// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"net"

	"github.com/Microsoft/go-winio"
)

func dialEndpoint(ctx context.Context, e endpoint) (net.Conn, error) {
	if e.pipe {
		return winio.DialPipeContext(ctx, e.address)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", e.address)
}
