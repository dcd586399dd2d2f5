// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"
	"errors"
	"net/netip"
)

var errOnlyLinux = errors.New("repair works on Linux only")

func addressesOn(context.Context, string, string) ([]netip.Addr, error) { return nil, errOnlyLinux }
func (f *flags) draft(lost) (string, error)                             { return "", errOnlyLinux }
func (f *flags) reserve(context.Context, lost, string) error            { return errOnlyLinux }
