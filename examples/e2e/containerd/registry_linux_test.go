// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The address is in the node's own network namespace.
const (
	registryAddress = "127.0.0.1:5000"
	registryImage   = registryAddress + "/pause:1"
)

// fromRegistry is the option of a node that pulls the image of its sandboxes.
func fromRegistry(n *node) { n.image, n.pinned = registryImage, false }

// A registry serves one image, and can delay its requests.
type registry struct {
	mu    sync.Mutex
	asked chan struct{} // closed when a request waits
	open  chan struct{} // closed when requests need not wait
}

// serveImage serves the image of the sandboxes until the end of the test.
func (n *node) serveImage() *registry {
	n.t.Helper()
	pause, err := newPauseImage()
	n.must(err)
	const kind = "application/vnd.oci.image."
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2,
		"mediaType":     kind + "manifest.v1+json",
		"config":        descriptor(kind+"config.v1+json", pause.config),
		"layers":        []any{descriptor(kind+"layer.v1.tar", pause.layer)},
	})
	n.must(err)
	r := &registry{open: make(chan struct{})}
	r.resume()
	serve := func(contentType string, content []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Docker-Content-Digest", digest(content))
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			_, _ = w.Write(content) // the client may have closed the connection
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/pause/manifests/", r.wait(serve(kind+"manifest.v1+json", manifest)))
	for _, blob := range [][]byte{pause.config, pause.layer} {
		mux.HandleFunc("/v2/pause/blobs/"+digest(blob), serve("application/octet-stream", blob))
	}
	mux.HandleFunc("/v2/", func(http.ResponseWriter, *http.Request) {})
	listener, err := net.Listen("tcp", registryAddress)
	n.must(err)
	server := &http.Server{Handler: mux}
	n.t.Cleanup(func() { _ = server.Close() }) // also ends requests
	go server.Serve(listener)                  //nolint:errcheck // it ends with the server

	n.must(os.MkdirAll(n.path("certs/"+registryAddress), 0o755))
	n.must(os.WriteFile(n.path("certs/"+registryAddress+"/hosts.toml"), fmt.Appendf(nil,
		"server = %[1]q\n[host.%[1]q]\n  capabilities = ['pull', 'resolve']\n", "http://"+registryAddress), 0o600))
	return r
}

func descriptor(mediaType string, content []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": digest(content), "size": len(content)}
}

// hold delays requests for the image, and returns a channel that is closed at the first
// request.
func (r *registry) hold() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked, r.open = make(chan struct{}), make(chan struct{})
	return r.asked
}

func (r *registry) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.open)
}

func (r *registry) wait(then http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		open := r.open
		if r.asked != nil {
			close(r.asked)
			r.asked = nil
		}
		r.mu.Unlock()
		select {
		case <-open:
			then(w, req)
		case <-req.Context().Done():
		}
	}
}

// removeImage removes the image of the sandboxes from the node.
func (n *node) removeImage() {
	n.t.Helper()
	_, err := n.images().RemoveImage(n.t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: n.image}})
	n.must(err)
}
