// SPDX-License-Identifier: Apache-2.0

// Release prepares and rehearses a release of all modules of this repository. A
// maintainer runs, in .ci/release and with GOWORK=off in the environment:
//
//	go run . set v0.1.0   # sets the version that modules here require of each other, in go.work, too
//	go run . zip          # checks that every module can be zipped, as the module proxy does
//	go run . rehearse     # fetches and builds all modules from outside (or one case, by a part of its name)
//	go run . apidiff      # prints API changes since the last tag; fails if the version must not break users
//	go run . tags v0.1.0  # prints the tags in the order to push them
//
// Only set changes files.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

const usage = "usage: go run . set VERSION | zip | rehearse [CASE] | apidiff | tags VERSION"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	dir, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return fmt.Errorf("asking git for the work tree: %w", err)
	}
	r, err := openRepo(strings.TrimSpace(string(dir)))
	if err != nil {
		return err
	}
	switch {
	case len(args) == 2 && args[0] == "set":
		return r.set(args[1])
	case len(args) == 2 && args[0] == "tags":
		tags, err := r.tags(args[1])
		for _, tag := range tags {
			fmt.Println(tag)
		}
		return err
	case len(args) == 1 && args[0] == "zip":
		return r.zipAll(os.Stdout)
	case len(args) == 1 && args[0] == "apidiff":
		return r.apidiff(ctx, os.Stdout)
	case len(args) == 1 && args[0] == "rehearse":
		return r.rehearse(ctx, os.Stdout, "")
	case len(args) == 2 && args[0] == "rehearse":
		return r.rehearse(ctx, os.Stdout, args[1])
	}
	return fmt.Errorf("%s", usage)
}
