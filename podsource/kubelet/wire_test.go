// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// TestParseResponse: all pods or an error (R2). A pod that is left out loses its address.
func TestParseResponse(t *testing.T) {
	for _, row := range []struct {
		reason  string
		message string
		want    []string
		says    string
	}{
		{"no pod", "", nil, ""},
		{"two pods", "\x0a\x01a\x0a\x02bc", []string{"a", "bc"}, ""},
		{"an empty pod, for which Convert returns an error", "\x0a\x00\x0a\x01a", []string{"", "a"}, ""},
		{"a length with more bytes than necessary", "\x0a\x81\x00a", []string{"a"}, ""},
		{"an unknown field of bytes, such as the token of the next page", "\x0a\x01a\x12\x01b", nil, "field 2 of wire type 2"},
		{"an unknown field with a number", "\x18\x01\x0a\x01a", nil, "field 3 of wire type 0"},
		{"the known field with another type", "\x08\x01", nil, "field 1 of wire type 0"},
		{"the known field as a group", "\x0b\x0c", nil, "field 1 of wire type 3"},
		{"field 0", "\x02\x01a", nil, "field 0 of wire type 0 after 0 pods"},
		{"a length beyond the end", "\x0a\x01a\x0a\x03bc", nil, "pod 2: "},
		{"no length", "\x0a\x01a\x0a", nil, "pod 2: "},
		{"a truncated tag", "\x0a\x01a\x8a", nil, "field 0 of wire type 0 after 1 pods"},
		{"a length of 2^63 bytes", "\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", nil, "pod 1: "},
	} {
		message, answer := []byte(row.message), []byte(nil)
		codecErr := raw{}.Unmarshal(message, &answer)
		clear(message) // gRPC reuses its memory
		pods, err := parseResponse(answer)
		var got []string
		for _, pod := range pods {
			got = append(got, string(pod))
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
		if (err == nil) != (row.says == "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: got error %v, want one that says %q", row.reason, err, row.says)
		}
		if _, decodeErr := decode(answer); codecErr != nil || err != nil && (decodeErr == nil || !strings.Contains(decodeErr.Error(), row.says)) {
			t.Errorf("%s: decode returned the error %v, want that of parseResponse", row.reason, decodeErr)
		}
	}
}

// FuzzAnswer checks that decode returns every pod of the answer or an error, never both, and
// does not panic.
func FuzzAnswer(f *testing.F) {
	web := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}}}}
	web.Name, web.UID = "web", "1"
	for _, p := range []*corev1.Pod{web, {}} {
		text, err := p.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, text)
		f.Add(text, text[:len(text)/2])
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, []byte{0x1b})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var message []byte
		for _, pod := range [][]byte{first, second} {
			message = protowire.AppendBytes(protowire.AppendTag(message, podsField, protowire.BytesType), pod)
		}
		pods, err := decode(message)
		if (err == nil) != (len(pods) == 2) {
			t.Fatalf("%d pods of 2, and error %v", len(pods), err)
		}
		for i := range pods {
			var object corev1.Pod
			if err := object.Unmarshal(slices.Clone([][]byte{first, second}[i])); err != nil {
				t.Fatalf("pod %d can't be read, but decode returned no error: %v", i+1, err)
			}
			if pods[i].Name == "" || pods[i].Name != object.Name || pods[i].UID != object.UID {
				t.Errorf("pod %d is %s/%s (UID %s), and got %v", i+1, object.Namespace, object.Name, object.UID, pods[i])
			}
		}
	})
}

// TestExplainDial also has errors that root can't cause.
func TestExplainDial(t *testing.T) {
	for _, row := range []struct {
		reason string
		errno  syscall.Errno
		kinds  []error
		says   string
	}{
		{"no socket", syscall.ENOENT, []error{podsource.ErrNotHere}, "Kubernetes 1.37"},
		{"not root", syscall.EACCES, []error{fs.ErrPermission}, "run as root"},
		{"nothing listens", syscall.ECONNREFUSED, []error{podsource.ErrIncomplete, syscall.ECONNREFUSED}, "remove the file"},
		{"the queue of connections is full", syscall.EAGAIN, []error{podsource.ErrIncomplete, syscall.EAGAIN}, "does it hang?"},
		{"no file descriptors", syscall.EMFILE, []error{syscall.EMFILE}, "dial unix"},
	} {
		err := explainDial(&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", row.errno)})
		for _, kind := range []error{podsource.ErrNotHere, fs.ErrNotExist, fs.ErrPermission, podsource.ErrIncomplete} {
			if want := slices.Contains(row.kinds, kind); errors.Is(err, kind) != want {
				t.Errorf("%s: %q is %v: %t, want %t", row.reason, err, kind, !want, want)
			}
		}
		if !strings.Contains(err.Error(), row.errno.Error()) || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %q lacks %q or %q", row.reason, err, row.errno, row.says)
		}
	}
}

// TestNew: an empty path is the default, and a relative one an error.
func TestNew(t *testing.T) {
	for socket, want := range map[string]string{"": DefaultSocket, "/s": "/s", "pods-api.sock": "", "unix:///pods-api.sock": "",
		"/" + strings.Repeat("s", 106): "/" + strings.Repeat("s", 106), "/" + strings.Repeat("s", 107): ""} {
		got, err := New(socket)
		if want == "" {
			if got != nil || err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is not an absolute path", socket)) {
				t.Errorf("%s: got %v, %v", socket, got, err)
			}
		} else if err != nil || got.socket != want {
			t.Errorf("%s: got %v, %v, want %s", socket, got, err, want)
		}
	}
}
