// SPDX-License-Identifier: Apache-2.0

// Package incidents reproduces issues of the field on the code that they are about, and ends
// them. It has tests only:
//
//	GOWORK=off go -C examples/incidents test -v -timeout 30m -run containerd12130 .
//
// builds the real parts through the module proxy, makes namespaces of its own, shows the leak,
// shows that the parts alone do not recover, has the library or one of its programs do one pass, and shows
// that the node works again and that who lived kept its address. They need root; where something is
// missing they say so and fail. README.md has what they need, and what stays.
//
// incidents.md is the table of what these runs found. A run that finds something else fails, and with -update
// writes what it found.
//
// # Conformance
//
//	GOWORK=off go -C examples/incidents test -v -run TestCollector -collector 'CMD {dir} {pods.json}' .
//
// runs hazards of the library against any collector that is a command. conformance.md has those of some
// designs, and how a command is called.
//
// # Reading the source
//
// The incidents are in podsource/cri/containerdtest, where a node with a real containerd is: one file
// for each, incident_NAME_linux_test.go. incidents_linux_test.go lists them in the order of the table,
// run_linux_test.go runs one, and table_linux_test.go keeps the tables. hazards_linux_test.go has the cases of the
// conformance, conformance_linux_test.go tries a collector on them, judge_linux_test.go shows that it tells
// outcomes apart, and collectors_linux_test.go has those of the table.
package incidents
