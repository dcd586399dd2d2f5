// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package checkpoint

import "errors"

func kernelBootID() (string, error) { return "", nil }

// There are no network namespaces here.
func look(string) (NetNS, error) { return NetNS{}, errors.ErrUnsupported }

func (n NetNS) gone() bool { return false }
