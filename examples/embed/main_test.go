// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// What the agent's store does not have goes at once, however young it is.
func TestRun(t *testing.T) {
	for _, row := range []struct {
		reason, network string
		live            []string // in the store; nil is a store that is lost
		left            []string
		says            string // in the log, or in the error
	}{
		{"one of three is live", "podnet", []string{"live"}, []string{"10.0.0.3", "10.1.0.2"}, `"Ready to serve ADDs" "released"=2`},
		{"all are live", "podnet", []string{"old", "live", "young"}, []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.1.0.2"}, `"released"=0`},
		{"a lost store releases nothing, and the agent lives", "podnet", nil, []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.1.0.2"},
			`"Could not release leaked addresses; going on"`},
		{"no name of a network", "../podnet", []string{"live"}, []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.1.0.2"},
			`"../podnet" is not the name of a CNI network`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := gctest.NewDir(t)
				dir.Reserve("podnet", "10.0.0.2", gctest.ContainerID("old"), time.Hour)
				dir.Reserve("podnet", "10.0.0.3", gctest.ContainerID("live"), time.Hour)
				dir.Reserve("podnet", "10.0.0.4", gctest.ContainerID("young"), 0)
				dir.Reserve("storage", "10.1.0.2", gctest.ContainerID("old"), time.Hour)
				t.Setenv("DATA_DIR", dir.Store.DataDir())

				file := filepath.Join(t.TempDir(), "interfaces.json")
				var interfaces []podsource.Attachment
				for _, name := range row.live {
					interfaces = append(interfaces, podsource.Attachment{Network: "podnet", ContainerID: gctest.ContainerID(name), IfName: "eth0"})
				}
				text, err := json.Marshal(interfaces)
				if row.live != nil && (err != nil || os.WriteFile(file, text, 0o600) != nil) {
					t.Fatal("writing the store")
				}

				var said strings.Builder
				log := funcr.New(func(_, line string) { fmt.Fprintln(&said, line) }, funcr.Options{})
				err = run(t.Context(), log, row.network, file)
				if fmt.Fprintln(&said, err); !strings.Contains(said.String(), row.says) || (err == nil) != (row.network == "podnet") {
					t.Errorf("it returned and logged, without %s:\n%s", row.says, &said)
				}
				list, err := dir.Store.List(t.Context())
				var left []string
				for _, r := range list.Reservations {
					left = append(left, r.IP.String())
				}
				if diff := cmp.Diff(row.left, left); diff != "" || err != nil {
					t.Errorf("reservations afterwards: %v (-want +got):\n%s", err, diff)
				}
			})
		})
	}
}
