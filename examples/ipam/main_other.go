// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "fmt"

func run() int {
	fmt.Println(`{"code": 100, "msg": "hostlocal-gc-ipam is for Linux: use host-local"}`)
	return 1
}
