// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A delegation is a request's configuration, seen as that of the plugin which
// does the work:
//
//	{"cniVersion": "1.1.0", "name": "podnet", "type": "cniserver", "socket": "…",
//	 "delegate": {"type": "bridge", …, "ipam": {"type": "host-local", …}}}
type delegation struct {
	network string
	plugin  string // bridge or ptp
	config  []byte // what it gets on stdin
}

// passedOn are the keys that a runtime adds to a configuration for the plugin.
var passedOn = []string{"cniVersion", "name", "runtimeConfig", "prevResult", "cni.dev/valid-attachments", "cni.dev/attachments"}

// delegationOf reads a configuration. It refuses what the server could not undo:
// another IPAM plugin, reservations in another data dir than that which the
// server watches, and ipMasq, whose rules need the addresses that a DEL may not
// find any more.
func delegationOf(text []byte, dataDir string) (*delegation, error) {
	var whole, delegate map[string]json.RawMessage
	_ = json.Unmarshal(text, &whole)
	_ = json.Unmarshal(whole["delegate"], &delegate)
	if delegate == nil { // as in what is no configuration at all
		return nil, types.NewError(types.ErrInvalidNetworkConfig, `the configuration needs a "delegate", a bridge or ptp configuration`, "")
	}
	for _, key := range passedOn {
		if raw, ok := whole[key]; ok {
			delegate[key] = raw
		}
	}
	config, err := json.Marshal(delegate)
	if err != nil {
		return nil, err
	}
	var known struct {
		Name   string `json:"name"`
		Type   string `json:"type"`
		IPMasq bool   `json:"ipMasq"`
		IPAM   struct {
			Type    string `json:"type"`
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(config, &known); err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, `reading the "delegate"`, err.Error())
	}
	dir := known.IPAM.DataDir
	if dir == "" {
		dir = hostlocal.DefaultDataDir
	}
	wrong := ""
	switch {
	case known.Type != "bridge" && known.Type != "ptp":
		wrong = fmt.Sprintf(`"delegate" has type %q; bridge and ptp are understood`, known.Type)
	case known.IPAM.Type != "host-local":
		wrong = fmt.Sprintf(`"delegate" has the IPAM type %q; host-local is understood`, known.IPAM.Type)
	case filepath.Clean(dir) != filepath.Clean(dataDir):
		wrong = fmt.Sprintf(`"delegate" has the dataDir %q; the server watches %q`, dir, dataDir)
	case known.IPMasq:
		wrong = `"delegate" has ipMasq, which this server does not support`
	}
	if wrong != "" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, wrong, "")
	}
	return &delegation{network: known.Name, plugin: known.Type, config: config}, nil
}
