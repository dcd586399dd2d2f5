// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"errors"
	"fmt"
	"os"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
)

// A Conf is what a CNI configuration says of a network that host-local serves.
type Conf struct {
	Network string
	DataDir string
	Ranges  []Range
}

// ReadConf reads a network configuration (.conf) or a list of plugins (.conflist):
// the networks in it that host-local serves. It is an error if there is none, or if
// one's ranges are known at run time only.
func ReadConf(path string) ([]Conf, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the CNI configuration: %w", err)
	}
	networks, err := cniconf.Parse(text)
	if err == nil && len(networks) == 0 {
		err = errors.New("none of its plugins has host-local as its IPAM")
	}
	var confs []Conf
	for _, n := range networks {
		conf := Conf{Network: n.Name, DataDir: n.DataDir}
		for _, set := range n.Ranges {
			conf.Ranges = append(conf.Ranges, set...)
		}
		if n.Ranges == nil {
			err = errors.Join(err, fmt.Errorf("the ranges of network %s are set at run time, and not in it", n.Name))
		}
		confs = append(confs, conf)
	}
	if err != nil {
		return nil, fmt.Errorf("CNI configuration %s: %w", path, err)
	}
	return confs, nil
}
