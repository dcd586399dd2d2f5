// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

func main() { panic("cniserver needs network namespaces, which only Linux has") }
