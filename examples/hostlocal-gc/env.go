// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// What flags don't say the environment may: in an agent's pod the commands then look at the
// node as the agent does.

// nodeName is what manifests commonly call the variable that the downward API
// fills with spec.nodeName.
const nodeName = "NODE_NAME"

// variable returns the environment variable of a flag.
func variable(flag string) string {
	return "HOSTLOCAL_GC_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets the flags that the command line did not give from their
// variables. An empty variable counts as not set: a manifest's template often
// leaves one.
//
// Unknown variables of the prefix are no error: Kubernetes makes some for every
// Service of a pod's namespace, and one may be called hostlocal-gc.
func fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	set := func(f *pflag.Flag, name string) {
		value, _ := lookup(name)
		if value == "" || f.Changed || f.Name == flagYes {
			return
		}
		values := []string{value}
		if _, several := f.Value.(pflag.SliceValue); several {
			values = strings.Fields(value)
		}
		for _, v := range values {
			if err := flags.Set(f.Name, v); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	flags.VisitAll(func(f *pflag.Flag) { set(f, variable(f.Name)) })
	if f := flags.Lookup("node"); f != nil {
		set(f, nodeName)
	}
	return errors.Join(errs...)
}
