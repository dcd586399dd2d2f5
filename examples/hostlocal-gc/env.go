// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Environment variables may set flags. A command that is run in an agent's pod then judges as the
// agent does.

// nodeName is the usual name of the variable that the downward API fills with spec.nodeName.
const nodeName = "NODE_NAME"

// prefix begins the name of each flag's variable.
const prefix = "HOSTLOCAL_GC_"

// variable returns the environment variable of a flag.
func variable(flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets from their variables the flags that the command line did not set. An empty
// variable counts as not set: a manifest's template often leaves one.
func fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	set := func(f *pflag.Flag, name string) {
		value, _ := lookup(name)
		if value == "" || f.Changed || f.Name == flagYes || f.Name == flagForeign {
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

// ofService matches the variables that Kubernetes sets for each Service in a pod's namespace. A
// Service may be called hostlocal-gc
// (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
var ofService = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)=`)

// misspelt returns an error if a variable with the prefix has a value and belongs to no flag of any
// command. With HOSTLOCAL_GC_DRYRUN instead of HOSTLOCAL_GC_DRY_RUN an agent would release.
func misspelt(root *cobra.Command, environ []string) error {
	var known []string
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, variable(f.Name)) })
	}
	var unknown []string
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, prefix) && value != "" && !slices.Contains(known, name) && !ofService.MatchString(name+"=") {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return usagef("unknown variable %s: the variable of a flag is %s and its name in capitals, with _ for -", strings.Join(unknown, ", "), prefix)
}
