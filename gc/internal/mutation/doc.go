// SPDX-License-Identifier: Apache-2.0

// Package mutation has no code, only mutation tests.
//
// TestMutations takes out one guard of the safety rules at a time, from a table, and fails
// unless each of the guard's tests fails. The table also lists the hazards that each guard
// prevents: go test -run TestGuards -v prints it.
//
// TestVariants makes small changes in the functions of the packages of the flag -variants: it
// drops an error, uses only the first of several elements, moves a boundary, ignores a context,
// removes a call or an assignment, or makes a part of a condition true or false. It fails if no
// test of the package fails with a change, unless testdata/named.txt names that change with a
// reason.
package mutation
