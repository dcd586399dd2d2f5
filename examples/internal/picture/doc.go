// SPDX-License-Identifier: Apache-2.0

// Package picture draws a network's address range as a grid of cells. A cell is an address, or a
// block of addresses if the range is too large for a screen.
//
// [Draw] makes a [Picture], which is independent of the output. [Picture.Text] and [Picture.SVG]
// show the same cells. [ReadConf] reads the ranges from a CNI configuration. [ReadLast] reads the
// addresses at which host-local continues its search.
package picture
