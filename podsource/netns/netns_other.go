// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netns

import (
	"context"
	"errors"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

var errLinuxOnly = errors.New("network namespaces exist on Linux only")

// A Source asks the kernel which addresses are in use, on Linux only.
type Source struct{}

// New returns an error on systems other than Linux.
func New(Options) (*Source, error) { return nil, errLinuxOnly }

// Pods returns an error on systems other than Linux.
func (*Source) Pods(context.Context) (podsource.Answer, error) {
	return podsource.Answer{Source: "netns"}, errLinuxOnly
}

// Living returns an error on systems other than Linux.
func (*Source) Living(context.Context) (func(path string, at time.Time) (lives, sure bool), error) {
	return nil, errLinuxOnly
}
