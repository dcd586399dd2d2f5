// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// The API server is asked for the right node, as soon as it is known how.
func TestFromConfig(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	reach := func() (*rest.Config, error) { return &rest.Config{Host: server.URL}, nil }
	late := 0
	const noNode = "there is no such Node"
	for _, row := range []struct {
		reason, name, variable, service string
		config                          func() (*rest.Config, error)
		want, err                       string // the node, and a part of the error
	}{
		{"it is named", "named", "variable", "", reach, "named", noNode},
		{"the downward API sets it", "", "variable", "", reach, "variable", noNode},
		{"the host's name, in the letters in which kubelet registers it", "", "", "", reach, strings.ToLower(host), noNode},
		{"no node can have this name", "Node_1", "", "", reach, "", podsource.ErrPermanent.Error()},
		{"no pod", "named", "", "", nil, "", podsource.ErrNotHere.Error()},
		{"a pod without a token", "named", "", "10.96.0.1", nil, "", podsource.ErrNotHere.Error()},
		{"a file that can't be read at first", "named", "", "", func() (*rest.Config, error) {
			if late++; late == 1 {
				return nil, os.ErrNotExist
			}
			return reach()
		}, "", "asking how to reach the API server: file does not exist"},
		{"a configuration that is none", "named", "", "", func() (*rest.Config, error) { return &rest.Config{Host: "http://%zz"}, nil }, "", "making a client"},
	} {
		t.Setenv("NODE_NAME", row.variable)
		t.Setenv("KUBERNETES_SERVICE_HOST", row.service)
		t.Setenv("KUBERNETES_SERVICE_PORT", row.service)
		asked = nil
		s := FromConfig(row.config, row.name)
		a, err := s.Pods(t.Context())
		if err == nil || !strings.Contains(err.Error(), row.err) || a.Source != "kube" || errors.Is(err, podsource.ErrNotHere) != (row.config == nil) {
			t.Errorf("%s: got %v, %v, want an error that says %q", row.reason, a, err, row.err)
		}
		if got := strings.TrimPrefix(strings.Join(asked, " "), "/api/v1/nodes/"); got != row.want {
			t.Errorf("%s: asked for node %q, want %q", row.reason, got, row.want)
		}
		if late == 1 {
			if _, err := s.Pods(t.Context()); late != 2 || len(asked) != 1 || err == nil {
				t.Errorf("%s: the second call read it %d times, and got %v", row.reason, late, err)
			}
		}
	}
}
