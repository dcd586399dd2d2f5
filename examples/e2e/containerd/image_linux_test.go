// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pauseImage is the name of the image that newPauseImage makes.
const pauseImage = "docker.io/library/containerdtest-pause:1"

// An image is an image with a single layer, which has a single program.
type image struct {
	config, layer []byte
}

func newPauseImage() (image, error) {
	program, err := os.ReadFile(filepath.Join(os.Getenv(binEnv), "pause"))
	if err != nil {
		return image{}, err
	}
	layer, err := archive(map[string][]byte{"pause": program})
	if err != nil {
		return image{}, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{"/pause"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	return image{config: config, layer: layer}, err
}

// docker packs the image in the form of `docker save`.
func (i image) docker(name string) ([]byte, error) {
	manifest, err := json.Marshal([]any{map[string]any{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return nil, err
	}
	return archive(map[string][]byte{"manifest.json": manifest, "config.json": i.config, "layer.tar": i.layer})
}

func archive(files map[string][]byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// importImage imports the image of sandboxes, since the tests use no registry. The CRI learns
// of it by an event, later, and would pull it until then.
func (n *node) importImage() {
	n.t.Helper()
	n.importImageAs(ofCRI)
	images := n.images()
	n.await("the CRI to know the image", func(ctx context.Context) error {
		answer, err := images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: n.image}})
		if err == nil && answer.GetImage() == nil {
			err = errors.New("it knows no " + n.image)
		}
		return err
	})
}

// images returns a client of the CRI's image service.
func (n *node) images() runtimeapi.ImageServiceClient {
	n.t.Helper()
	conn, err := grpc.NewClient(n.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	n.must(err)
	n.t.Cleanup(func() { _ = conn.Close() }) // nothing uses it any more
	return runtimeapi.NewImageServiceClient(conn)
}

// importImageAs imports the image into a containerd namespace.
func (n *node) importImageAs(namespace string) {
	n.t.Helper()
	pause, err := newPauseImage()
	n.must(err)
	packed, err := pause.docker(n.image)
	n.must(err)
	file := n.path("pause.tar")
	n.must(os.WriteFile(file, packed, 0o600))
	n.ctrIn(namespace, "images", "import", file)
	n.must(os.Remove(file))
}

// ofCRI is the containerd namespace of the CRI.
const ofCRI = "k8s.io"

// ctr runs containerd's own client in the namespace of the CRI.
func (n *node) ctr(args ...string) {
	n.t.Helper()
	n.ctrIn(ofCRI, args...)
}

func (n *node) ctrIn(namespace string, args ...string) {
	n.t.Helper()
	args = append([]string{"--address", n.socket(), "--namespace", namespace}, args...)
	if out, err := exec.CommandContext(n.t.Context(), filepath.Join(n.bin, "ctr"), args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ctr %v: %v: %s", args, err, out)
	}
}
