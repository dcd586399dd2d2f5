// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

// A delegation is the configuration of the delegate, taken from that of a request:
//
//	{"cniVersion": "1.1.0", "name": "podnet", "type": "cniserver", "socket": "…",
//	 "delegate": {"type": "bridge", …, "ipam": {"type": "host-local", …}}}
type delegation struct {
	network string
	plugin  string // bridge or ptp
	config  []byte // its stdin
}

// runtimeKeys are the keys that a runtime adds to a plugin's configuration.
var runtimeKeys = []string{"cniVersion", "name", "runtimeConfig", "prevResult", "cni.dev/valid-attachments", "cni.dev/attachments"}

// delegationOf reads a configuration. It refuses what the server could not undo:
// other IPAM plugins, reservations outside of the server's data directory, and ipMasq,
// since the rules can't be removed once the addresses are gone.
func delegationOf(text []byte, dataDir string) (*delegation, error) {
	var whole, delegate map[string]json.RawMessage
	_ = json.Unmarshal(text, &whole)
	_ = json.Unmarshal(whole["delegate"], &delegate)
	if delegate == nil { // also if text is no JSON object
		return nil, types.NewError(types.ErrInvalidNetworkConfig, `the configuration needs a "delegate", a bridge or ptp configuration`, "")
	}
	for _, key := range runtimeKeys {
		if raw, ok := whole[key]; ok {
			delegate[key] = raw
		}
	}
	config, _ := json.Marshal(delegate) // its values were read from JSON
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
		wrong = fmt.Sprintf(`"delegate" has type %q; only bridge and ptp are supported`, known.Type)
	case known.IPAM.Type != "host-local":
		wrong = fmt.Sprintf(`"delegate" has the IPAM type %q; only host-local is supported`, known.IPAM.Type)
	case filepath.Clean(dir) != filepath.Clean(dataDir):
		wrong = fmt.Sprintf(`"delegate" has the dataDir %q, but the server has %q`, dir, dataDir)
	case known.IPMasq:
		wrong = `"delegate" has ipMasq, which this server does not support`
	}
	if wrong != "" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, wrong, "")
	}
	return &delegation{network: known.Name, plugin: known.Type, config: config}, nil
}
