// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDependencies: every agent with this package links its dependencies.
func TestDependencies(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	for _, prefix := range []string{
		"k8s.io/client-go", // an agent that asks only kubelet needs no client of the API server
		"k8s.io/kubernetes", "k8s.io/apiserver", "k8s.io/component-base",
		"github.com/hostlocal-gc/hostlocal-gc/gc", "github.com/hostlocal-gc/hostlocal-gc/hostlocal",
	} {
		if slices.ContainsFunc(deps, func(dep string) bool { return dep == prefix || strings.HasPrefix(dep, prefix+"/") }) {
			t.Errorf("%s is imported", prefix)
		}
	}
	if len(deps) < 100 {
		t.Errorf("too few dependencies: %v", deps)
	}
}
