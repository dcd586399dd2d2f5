// SPDX-License-Identifier: Apache-2.0

package picture

import (
	"errors"
	"fmt"
	"os"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
)

// A Conf is a network of host-local in a CNI configuration.
type Conf struct {
	Network string
	DataDir string
	Ranges  []Range
}

// ReadConf returns the networks of host-local in a network configuration (.conf) or a list of
// plugins (.conflist). It is an error if there are none, or if the ranges of one are set at run
// time.
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
