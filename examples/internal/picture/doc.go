// SPDX-License-Identifier: Apache-2.0

// Package picture draws what a network's range of addresses looks like: a grid
// of cells, one for each address, or for each block of addresses where the range
// is too large for a screen.
//
// [Draw] makes a [Picture], which knows neither screen nor file; [Picture.Text]
// and [Picture.SVG] show the same cells. [ReadConf] reads the ranges from a CNI
// configuration, [ReadLast] where host-local goes on looking.
package picture
