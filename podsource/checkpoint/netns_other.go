// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package checkpoint

import (
	"context"
	"errors"
)

func kernelBootID() (string, error) { return "", nil }

// readNetNS returns an error: only Linux has network namespaces.
func readNetNS(string) (NetNS, error) { return NetNS{}, errors.ErrUnsupported }

func goneOf(_ context.Context, all []NetNS) (gone []bool, err error) {
	return make([]bool, len(all)), nil
}
