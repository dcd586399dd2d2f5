// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"
	"errors"
	"os"

	"github.com/go-logr/logr"
)

var errLinuxOnly = errors.New("network namespaces are Linux's: this server runs nowhere else")

func unplumb(string, string) (bool, error) { return false, errLinuxOnly }

func netnsID(string) string { return "" }

func gate(context.Context, string, logr.Logger) error { return errLinuxOnly }

func private(f func()) { f() }

func die() { os.Exit(137) }
