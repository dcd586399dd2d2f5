// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// This package calls one method of the Pods API. The request has no field and the response
// has one, so they are encoded here. The generated code is in k8s.io/kubelet, which would
// determine the versions of the API's types in every agent.
//
//	rpc ListPods(ListPodsRequest) returns (ListPodsResponse) {}
//	message ListPodsRequest {}
//	message ListPodsResponse { repeated bytes pods = 1; }
const (
	listPods  = "/v1alpha1.Pods/ListPods"
	podsField = 1
)

// wire is the codec of that call. A request is nil, and a response is a *[][]byte.
type wire struct{}

// Name returns the name of gRPC's own codec, since it is part of the content type.
func (wire) Name() string { return "proto" }

func (wire) Marshal(request any) ([]byte, error) {
	if request != nil {
		return nil, fmt.Errorf("a request of type %T", request)
	}
	return []byte{}, nil
}

func (wire) Unmarshal(message []byte, response any) error {
	pods, ok := response.(*[][]byte)
	if !ok {
		return fmt.Errorf("a response of type %T", response)
	}
	var err error
	*pods, err = parseResponse(message)
	return err
}

// parseResponse returns the pods of a ListPodsResponse, each marshalled. An unknown field is
// an error, since it may mean that these are not all pods. Generated code would skip it.
func parseResponse(message []byte) ([][]byte, error) {
	var pods [][]byte
	for rest := message; len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, fmt.Errorf("after %d bytes and %d pods: %w", len(message)-len(rest), len(pods), protowire.ParseError(n))
		}
		rest = rest[n:]
		if field != podsField || kind != protowire.BytesType {
			return nil, fmt.Errorf("field %d of wire type %d after %d pods is not known; is this a newer version of the API?", field, kind, len(pods))
		}
		pod, n := protowire.ConsumeBytes(rest)
		if n < 0 {
			return nil, fmt.Errorf("pod %d: %w", len(pods)+1, protowire.ParseError(n))
		}
		pods = append(pods, bytes.Clone(pod)) // gRPC reuses the message
		rest = rest[n:]
	}
	return pods, nil
}
