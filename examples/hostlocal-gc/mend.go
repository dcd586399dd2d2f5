// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// A mending is what a command would do that changes files which no pass may: a person looks at it first.
type mending struct {
	heading string // over what would be done
	none    string // if there is nothing to do
	all     []mend
	refused map[string][]string // addresses that are left alone, by the reason
}

// A mend changes one file.
type mend struct {
	row  []string // which is shown before
	what string   // it did
	do   func(context.Context) error
}

// mend shows what would be done, with --yes does it, and returns what was refused or failed. It does nothing after a pass
// with an error, which was printed.
func (a *app) mend(ctx context.Context, done *result, m *mending) error {
	if done.Err != nil {
		return errors.New("nothing was changed, because of the error above")
	}
	var errs []error
	for _, why := range slices.Sorted(maps.Keys(m.refused)) {
		errs = append(errs, fmt.Errorf("%s\n  %s", why, strings.Join(few(m.refused[why], fewRows), "\n  ")))
	}
	var rows [][]string
	for _, one := range m.all {
		rows = append(rows, one.row)
	}
	if more := len(rows) - fewRows; more > 0 {
		rows = append(rows[:fewRows], []string{fmt.Sprintf("... %d more", more)})
	}
	text := a.section(m.heading, rows)
	switch {
	case len(m.all)+len(m.refused) == 0:
		text = m.none + "\n"
	case len(m.all) > 0 && !a.flags.yes:
		text += "Nothing was changed: --yes does this.\n"
	}
	if _, err := io.WriteString(a.stdout, text); err != nil || !a.flags.yes {
		return errors.Join(append(errs, err)...)
	}
	for _, one := range m.all {
		if err := one.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", one.row[0], err))
		} else {
			fmt.Fprintln(a.stdout, one.what)
		}
	}
	return errors.Join(errs...)
}
