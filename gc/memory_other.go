// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package gc

import "errors"

func originOf(string) (string, string, error) {
	return "", "", errors.New("first sights outlive a process on Linux only")
}

func lockMemory(string) (func(), error) { return nil, errors.ErrUnsupported }

func readPrivate(string) (string, error) { return "", errors.ErrUnsupported }
