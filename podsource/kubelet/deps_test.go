// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"os/exec"
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
	for prefix, reason := range map[string]string{
		"k8s.io/client-go":                               "an agent that asks only kubelet needs no client of the API server, which has megabytes",
		"k8s.io/kubernetes":                              "kubelet itself is not a library",
		"k8s.io/apiserver":                               "this package has no server",
		"k8s.io/component-base":                          "flags, metrics and logs belong to the agent",
		"github.com/hostlocal-gc/hostlocal-gc/gc":        "sources do not depend on the collector",
		"github.com/hostlocal-gc/hostlocal-gc/hostlocal": "sources do not depend on the store",
	} {
		for _, dep := range deps {
			if dep == prefix || strings.HasPrefix(dep, prefix+"/") {
				t.Errorf("%s is imported: %s", dep, reason)
			}
		}
	}
	if len(deps) < 100 {
		t.Errorf("too few dependencies: %v", deps)
	}
}
