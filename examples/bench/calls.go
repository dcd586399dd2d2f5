// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
)

// calls are the system calls of one pass.
type calls struct {
	scenario
	who    string
	byName map[string]int
}

func (c *calls) total() (n int) {
	for _, k := range c.byName {
		n += k
	}
	return n
}

// tracedEnv makes this program do nothing but one pass, for strace to count.
const tracedEnv = "HOSTLOCAL_GC_BENCH_PASS"

// A tracedSpec is the value of tracedEnv.
type tracedSpec struct {
	DataDir  string
	Scenario scenario
	Who      string
	Idle     bool // get ready for the pass, and leave it at that
}

func tracedPass(ctx context.Context, text string) error {
	var spec tracedSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return fmt.Errorf("%s: %w", tracedEnv, err)
	}
	do, err := newPass(spec.Who, describe(spec.DataDir, spec.Scenario), "")
	if err != nil || spec.Idle {
		return err
	}
	_, err = do(ctx)
	return err
}
