// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"
	"errors"
	"os"

	"github.com/go-logr/logr"
)

var errLinuxOnly = errors.New("this server runs on Linux only: it needs network namespaces")

func unplumb(string, string) (bool, error) { return false, errLinuxOnly }

func netnsID(string) string { return "" }

func acquireLock(context.Context, string, logr.Logger) error { return errLinuxOnly }

func withPrivateUmask(f func()) { f() }

func die() { os.Exit(137) }
