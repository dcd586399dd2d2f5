// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package cri

import (
	"context"
	"errors"
	"net"
)

func dialEndpoint(ctx context.Context, e endpoint) (net.Conn, error) {
	if e.pipe {
		return nil, errors.New("named pipes exist on Windows only")
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", e.address)
}
