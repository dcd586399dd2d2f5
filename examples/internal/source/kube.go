// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
)

// openKube returns a source that asks the API server for a node's pods.
func openKube(node string, env *Env) (podsource.Source, error) {
	s := &kubeSource{node: node, kubeconfig: env.Kubeconfig}
	if s.node == "" {
		s.node = env.Node
	}
	return s, nil
}

// A kubeSource makes its client at the first call, and tries again at the next one after an error:
// a missing file may appear.
type kubeSource struct {
	node       string // empty: NODE_NAME, or else the host's name
	kubeconfig string // empty: the pod's own account

	mu     sync.Mutex // guards source
	source podsource.Source
}

func (s *kubeSource) Pods(ctx context.Context) (podsource.Answer, error) {
	source, err := s.open()
	if err != nil {
		return podsource.Answer{Source: "kube"}, err
	}
	return source.Pods(ctx)
}

func (s *kubeSource) open() (podsource.Source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.source != nil {
		return s.source, nil
	}
	node, err := s.nodeName()
	if err != nil {
		return nil, err
	}
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the API server: %w", err)
	}
	source, err := kube.New(client, node, kube.Options{})
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", err, podsource.ErrPermanent)
	}
	s.source = source
	return source, nil
}

// config returns the client configuration for the API server.
func (s *kubeSource) config() (*rest.Config, error) {
	if s.kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("reading the kubeconfig: %w", err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("this is no pod with an account of its own; name a kubeconfig with --kubeconfig")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the account of this pod: %w; or name a kubeconfig with --kubeconfig", err)
	}
	return config, nil
}

// nodeName returns the name of the node whose pods are listed. By default it is the host's name, as
// kubelet would register it.
func (s *kubeSource) nodeName() (string, error) {
	if s.node != "" {
		return s.node, nil
	}
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("asking for this host's name: %w; name the node as kube:NODE", err)
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}
