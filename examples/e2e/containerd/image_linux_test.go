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
	"runtime"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pauseImage is the image of sandboxes. It has a single program, which waits for a signal.
const pauseImage = "docker.io/library/hostlocal-gc-e2e-pause:1"

// The containerd namespaces of the CRI, and of containers without it.
const (
	ofCRI = "k8s.io"
	bare  = "bare"
)

// importImage imports the image of sandboxes, since the tests use no registry. The CRI learns of it by an event,
// later, and would pull it until then.
func (n *node) importImage() {
	n.t.Helper()
	n.importImageAs(ofCRI)
	images := runtimeapi.NewImageServiceClient(n.conn)
	n.await("the CRI to know the image", func(ctx context.Context) error {
		answer, err := images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: pauseImage}})
		if err == nil && answer.GetImage() == nil {
			err = errors.New("it knows no " + pauseImage)
		}
		return err
	})
}

// importImageAs imports the image into a containerd namespace.
func (n *node) importImageAs(namespace string) {
	n.t.Helper()
	packed, err := packImage()
	n.must(err)
	file := n.path("pause.tar")
	n.must(os.WriteFile(file, packed, 0o600))
	n.ctr(namespace, "images", "import", file)
	n.must(os.Remove(file))
}

// packImage packs the image in the form of `docker save`.
func packImage() ([]byte, error) {
	program, err := os.ReadFile(bin("parts"))
	if err != nil {
		return nil, err
	}
	layer, err := archive(map[string][]byte{"pause": program})
	if err != nil {
		return nil, err
	}
	config, configErr := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Entrypoint": []string{"/pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{pauseImage}, "Layers": []string{"layer.tar"}}})
	if err := errors.Join(configErr, err); err != nil {
		return nil, err
	}
	return archive(map[string][]byte{"manifest.json": manifest, "config.json": config, "layer.tar": layer})
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

// ctr runs containerd's own client in a containerd namespace.
func (n *node) ctr(namespace string, args ...string) {
	n.t.Helper()
	_, err := n.tryCommand("ctr", append([]string{"--address", n.socket(), "--namespace", namespace}, args...)...)
	n.must(err)
}

// tryCommand runs a program, which may fail, and returns its output.
func (n *node) tryCommand(name string, args ...string) (string, error) {
	cmd := n.program(name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %v: %w: %s", name, args, err, &stderr)
	}
	return string(bytes.TrimSpace(stdout.Bytes())), nil
}
