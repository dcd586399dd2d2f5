// SPDX-License-Identifier: Apache-2.0

package cri

import "github.com/Microsoft/go-winio"

var dialPipe = winio.DialPipeContext
