// SPDX-License-Identifier: Apache-2.0

package incidents

import "testing"

// The incidents, in the order of the table, with the tools that some need besides containerd.

func TestIncident_containerd12130(t *testing.T) { run(t) }
func TestIncident_containerd5768(t *testing.T)  { run(t) }
func TestIncident_cni1055(t *testing.T)         { run(t) }
func TestIncident_microk8s5267(t *testing.T)    { run(t) }
func TestIncident_nerdctl1259(t *testing.T)     { run(t, "nerdctl") }
func TestIncident_multuscni1449(t *testing.T)   { run(t, "multus") }
func TestIncident_plugins1196(t *testing.T)     { run(t) }
func TestIncident_k3s5885(t *testing.T)         { run(t) }
func TestIncident_cni1086(t *testing.T)         { run(t, "nerdctl") }
func TestIncident_antrea8239(t *testing.T)      { run(t) }
func TestIncident_nomad11272(t *testing.T)      { run(t) }
