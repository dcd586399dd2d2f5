// SPDX-License-Identifier: Apache-2.0

// Package mutation holds no code, but three tests of the tests.
//
// TestMutations takes out one guard of the safety rules at a time, from a table, and
// fails unless the tests that the guard is listed with do. The table says which hazards a guard
// stands against.
//
// TestVariants makes small changes everywhere in a package: an error dropped, only
// the first of several looked at, a boundary moved, a context ignored, a call or an
// assignment removed, a part of a condition true or false. It fails when none of the package's
// tests notices one that testdata/named.txt does not name with a reason. It runs where it is
// told to, with -variants.
//
// TestGremlins does the same with what gremlins makes, a tool that others use: another
// operator in one place. It runs where it is told to, with -gremlins.
package mutation
