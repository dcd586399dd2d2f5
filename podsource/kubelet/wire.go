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

// raw is the codec of that call, which does not depend on what the agent registers for its own calls. A
// response is a *[]byte.
type raw struct{}

// Name returns the name of gRPC's own codec, since it is part of the content type.
func (raw) Name() string { return "proto" }

func (raw) Marshal(any) ([]byte, error) { return nil, nil }

func (raw) Unmarshal(message []byte, response any) error {
	*response.(*[]byte) = bytes.Clone(message) // gRPC reuses the message
	return nil
}

// parseResponse returns the pods of a ListPodsResponse, each marshalled. An unknown field is
// an error, since it may mean that these are not all pods. Generated code would skip it.
func parseResponse(message []byte) (pods [][]byte, err error) {
	for len(message) > 0 {
		field, kind, tag := protowire.ConsumeTag(message) // zero, zero and negative after an error
		if field != podsField || kind != protowire.BytesType {
			return nil, fmt.Errorf("field %d of wire type %d after %d pods is not known; is this a newer version of the API?",
				field, kind, len(pods))
		}
		pod, size := protowire.ConsumeBytes(message[tag:])
		if size < 0 {
			return nil, fmt.Errorf("pod %d: %w", len(pods)+1, protowire.ParseError(size))
		}
		pods, message = append(pods, pod), message[tag+size:]
	}
	return pods, nil
}
