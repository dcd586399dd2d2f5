// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"go/version"

	"golang.org/x/mod/semver"
)

// floors are the highest versions that library modules may require. An agent that embeds a
// module gets at least these, so do not raise them without need.
var floors = map[string]string{
	"github.com/Microsoft/go-winio": "v0.6.2", "github.com/go-logr/logr": "v1.4.3", "github.com/google/go-cmp": "v0.7.0",
	"github.com/prometheus/client_golang": "v1.19.1", "github.com/vishvananda/netlink": "v1.3.1", "golang.org/x/sys": "v0.35.0",
	"google.golang.org/protobuf": "v1.36.7", grpc: "v1.69.0", plugins: "v1.9.0",
	"k8s.io/api": "v0.28.0", apimachinery: "v0.28.0", clientGo: "v0.28.0", "k8s.io/cri-api": "v0.28.0",
}

// floorOfGo is the highest go line of a library module.
const floorOfGo = "1.24.2"

// checkFloors fails if a module requires a higher version than its floor.
func checkFloors(m *mod) error {
	var errs []error
	if version.Compare("go"+m.file.Go.Version, "go"+floorOfGo) > 0 {
		errs = append(errs, fmt.Errorf("%s: go %s is more than %s, the highest allowed", m.path, m.file.Go.Version, floorOfGo))
	}
	for _, req := range m.file.Require {
		floor, ok := floors[req.Mod.Path]
		if ok && semver.Compare(req.Mod.Version, floor) > 0 {
			errs = append(errs, fmt.Errorf("%s requires %s %s, which is more than %s, the highest allowed", m.path, req.Mod.Path, req.Mod.Version, floor))
		}
	}
	return errors.Join(errs...)
}
