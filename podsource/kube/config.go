// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// FromConfig returns a source like [New], with a client of its own. It makes the client when it
// is first asked, and tries again the next time: a file that is missing may appear.
//
// The function config returns how to reach the API server. Nil is [rest.InClusterConfig], the
// account of this pod: if this process is no pod, or one without a token, the error wraps
// [podsource.ErrNotHere]. Without a nodeName it is $NODE_NAME, which a pod sets by the downward
// API, or else the host's name in lower case, as kubelet registers it.
func FromConfig(config func() (*rest.Config, error), nodeName string) podsource.Source {
	var source *Source
	return podsource.AnswerFunc(func(ctx context.Context) (a podsource.Answer, err error) {
		if source == nil {
			if source, err = fromConfig(config, nodeName); err != nil {
				return podsource.Answer{Source: "kube"}, err
			}
		}
		return source.Pods(ctx)
	})
}

func fromConfig(config func() (*rest.Config, error), nodeName string) (*Source, error) {
	own := config == nil
	if own {
		config = rest.InClusterConfig
	}
	found, err := config()
	if own && (errors.Is(err, rest.ErrNotInCluster) || errors.Is(err, fs.ErrNotExist)) {
		err = fmt.Errorf("%w: this process has no account of a pod: %w", podsource.ErrNotHere, err)
	}
	if err != nil {
		return nil, fmt.Errorf("asking how to reach the API server: %w", err)
	}
	client, err := typedcorev1.NewForConfig(found)
	if err != nil {
		return nil, fmt.Errorf("making a client of the API server: %w", err)
	}
	host, _ := os.Hostname() // an empty name is an error of New
	source, err := New(client, cmp.Or(nodeName, os.Getenv("NODE_NAME"), strings.ToLower(host)), Options{})
	if err != nil {
		err = fmt.Errorf("%w (%w)", err, podsource.ErrPermanent)
	}
	return source, err
}
