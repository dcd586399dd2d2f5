// SPDX-License-Identifier: Apache-2.0

//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package checkpoint

import (
	"errors"
	"os"
)

// flock returns an error: on these systems no lock that ends with its process is
// implemented. Records can be read.
func flock(*os.File) error { return errors.ErrUnsupported }
