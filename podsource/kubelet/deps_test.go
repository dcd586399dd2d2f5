// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestDependencies: an agent links what this package imports.
func TestDependencies(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	for prefix, reason := range map[string]string{
		"k8s.io/client-go":                               "an agent that asks kubelet alone needs no client of the API server, which is megabytes",
		"k8s.io/kubernetes":                              "kubelet itself is not a library",
		"k8s.io/apiserver":                               "nothing is served here",
		"k8s.io/component-base":                          "flags, metrics and logs are the agent's business",
		"github.com/hostlocal-gc/hostlocal-gc/gc":        "sources know nothing of the collector",
		"github.com/hostlocal-gc/hostlocal-gc/hostlocal": "sources know nothing of the disk",
	} {
		for _, dep := range deps {
			if dep == prefix || strings.HasPrefix(dep, prefix+"/") {
				t.Errorf("%s is imported: %s", dep, reason)
			}
		}
	}
	if len(deps) < 100 {
		t.Errorf("these can't be all: %v", deps)
	}
}
