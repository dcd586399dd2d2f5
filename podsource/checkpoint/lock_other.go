// SPDX-License-Identifier: Apache-2.0

//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package checkpoint

import (
	"errors"
	"fmt"
	"runtime"
)

// lock returns an error: on these systems no lock that ends with its process is
// implemented. Records can be read.
func lock(string) (unlock func(), err error) {
	return nil, fmt.Errorf("records of attachments are not written on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
