// SPDX-License-Identifier: Apache-2.0

package mutation

// switches is the file that is added to a package. The environment variable MUTANT selects a
// variant by its number. MUTANTS_REACHED is a file to which the process appends the numbers
// of the variants whose code it reached.
const switches = `package PACKAGE

import (
	"context"
	"os"
	"strconv"
	"sync"
)

var (
	mutantOn, _      = strconv.Atoi(os.Getenv("MUTANT"))
	mutantReached, _ = os.OpenFile(os.Getenv("MUTANTS_REACHED"), os.O_APPEND|os.O_WRONLY, 0) // in time: a test may leave no descriptors
	mutantSeen       sync.Map
)

func mutant(n int) bool {
	if mutantReached != nil {
		if _, seen := mutantSeen.LoadOrStore(n, true); !seen {
			_, _ = mutantReached.WriteString(strconv.Itoa(n) + "\n")
		}
	}
	return n == mutantOn
}

func mutantOr[T any](n int, other, v T) T {
	if mutant(n) {
		return other
	}
	return v
}

func mutantContext(n int, ctx context.Context) context.Context {
	if mutant(n) {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

func mutantFirst[S ~[]E, E any](n int, s S) S {
	if len(s) > 1 && mutant(n) {
		return s[:1]
	}
	return s
}
`
