// SPDX-License-Identifier: Apache-2.0

// Package incidents reproduces reported issues on the code that they concern, and resolves them. It
// has tests only:
//
//	GOWORK=off go -C examples/incidents test -v -timeout 30m -run containerd12130 .
//
// builds the real components through the module proxy, and makes namespaces of its own. It shows
// the leak, shows that the components alone do not recover, and makes one pass of the library or of
// one of its programs. Then it shows that the node works again and that live containers kept their
// addresses. It needs root. If anything is missing, it says so and fails. README.md has the
// requirements, and what stays on the disk.
//
// incidents.md has the results. A run with another result fails, or with -update writes it to the
// table.
//
// # Conformance
//
//	GOWORK=off go -C examples/incidents test -v -run TestCollector -collector 'CMD {dir} {pods.json}' .
//
// runs hazards of the library against any collector that is a command. conformance.md has the
// results of some designs, and how the command is called.
//
// # Reading the source
//
// The incidents are in podsource/cri/containerdtest, which runs a node with a real containerd: one
// file for each, incident_NAME_linux_test.go. Here incidents_linux_test.go lists them in the order
// of the table, run_linux_test.go runs one, and table_linux_test.go writes the tables.
// hazards_linux_test.go has the cases of the conformance, conformance_linux_test.go runs a
// collector on them, collectors_linux_test.go has the collectors of the table, and
// judge_linux_test.go tests the outcomes.
package incidents
