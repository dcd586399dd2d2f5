// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// TestMessages compares the generated code with the encoding of podsource/kubelet: the
// method, a request without a field, and a response with one.
func TestMessages(t *testing.T) {
	if got, want := podsv1alpha1.Pods_ListPods_FullMethodName, "/v1alpha1.Pods/ListPods"; got != want {
		t.Errorf("the method is %s, want %s", got, want)
	}
	request := (&podsv1alpha1.ListPodsRequest{}).ProtoReflect().Descriptor().Fields()
	if request.Len() != 0 {
		t.Errorf("the request has %d fields, want none: %v", request.Len(), request)
	}
	response := (&podsv1alpha1.ListPodsResponse{}).ProtoReflect().Descriptor().Fields()
	if response.Len() != 1 {
		t.Fatalf("the response has %d fields, want one: %v", response.Len(), response)
	}
	if f := response.Get(0); f.Number() != 1 || f.Kind() != protoreflect.BytesKind || !f.IsList() {
		t.Errorf("the response has %v, want repeated bytes with the number 1", f)
	}
}
