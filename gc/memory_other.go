// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package gc

import (
	"errors"
	"os"
)

func originOf(string) (origin, string, error) {
	return origin{}, "", errors.New("first sights outlive a process on Linux only")
}

func lockMemory(string) (func(), error) { return nil, errors.ErrUnsupported }

func openMemory(string) (*os.File, error) { return nil, errors.ErrUnsupported }
