// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netns

import (
	"context"
	"fmt"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

var errLinuxOnly = fmt.Errorf("%w: network namespaces exist on Linux only", podsource.ErrNotHere)

// A Source asks the kernel which addresses are in use, on Linux only.
type Source struct{}

// New returns a source that does not exist on this system.
func New(Options) (*Source, error) { return &Source{}, nil }

// Pods returns an error that wraps [podsource.ErrNotHere] on systems other than Linux.
func (*Source) Pods(context.Context) (podsource.Answer, error) {
	return podsource.Answer{Source: "netns"}, errLinuxOnly
}

// Living returns an error on systems other than Linux.
func (*Source) Living(context.Context) (func(path string, at time.Time) (lives, sure bool), error) {
	return nil, errLinuxOnly
}
