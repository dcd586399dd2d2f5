// SPDX-License-Identifier: Apache-2.0

package cnitest

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Runtime returns libcni with plugins in the directory bin and its cache in another one. It passes
// the plugins' stderr on. The Exec is set here, since libcni would create it lazily and without a
// lock.
func Runtime(bin, cache string, stderr io.Writer) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{bin}, cache, &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: stderr}})
}

// IPs returns the addresses of an ADD's result.
func IPs(result types.Result) ([]netip.Addr, error) {
	current, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, c := range current.IPs {
		ip, ok := netip.AddrFromSlice(c.Address.IP)
		if !ok {
			return nil, fmt.Errorf("%v is no address", c.Address)
		}
		ips = append(ips, ip.Unmap())
	}
	return ips, nil
}
