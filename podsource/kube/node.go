// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// checkNode makes sure that the pods which the API has for this node's name are
// those of this machine, as it is booted now (R9, hazard 23).
func (s *Source) checkNode(ctx context.Context) error {
	if s.opts.SkipNodeCheck {
		return nil
	}
	if s.opts.GetNode == nil {
		return errors.New("nothing tells that this is the right node: set Options.GetNode, or SkipNodeCheck to trust its name")
	}
	// The kernel first: what is wrong there costs the API server nothing.
	bootID, err := s.bootID()
	if err != nil {
		return err
	}
	node, err := s.opts.GetNode(ctx, s.nodeName)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no such Node: is this the name under which kubelet registered it? "+
			"In a pod that is spec.nodeName, and not always the host's name: %w", err)
	case err != nil:
		return explain(err, "reading its Node", `verb "get" on resource "nodes"`)
	case node == nil:
		return errors.New("reading its Node: got none, and no error")
	case node.Name != s.nodeName:
		return fmt.Errorf("reading its Node: got that of %q", node.Name)
	}
	return s.sameNode(node, bootID)
}

// sameNode compares the Node with this machine.
func (s *Source) sameNode(node *corev1.Node, bootID string) error {
	if want := s.opts.NodeUID; want != "" && node.UID != want {
		return fmt.Errorf("its Node has the UID %s, and expected was %s: it was deleted and made anew, "+
			"or another machine has taken its name", node.UID, want)
	}
	switch got := strings.TrimSpace(node.Status.NodeInfo.BootID); got {
	case bootID:
		return nil
	case "":
		return fmt.Errorf("%w: its Node has no boot ID, so kubelet has not reported yet", podsource.ErrIncomplete)
	default:
		return fmt.Errorf("%w: its Node (UID %s) was last reported by a kernel with the boot ID %s, and this kernel's is %s: "+
			"kubelet has not reported since the boot, or the Node is another machine's and the name is wrong here",
			podsource.ErrIncomplete, node.UID, got, bootID)
	}
}

// bootIDFile is where Linux tells the boot ID; kubelet reads it there, too.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// bootID returns the boot ID of this kernel, which is never empty.
func (s *Source) bootID() (string, error) {
	const advice = "set Options.BootID, or SkipNodeCheck to trust the node's name"
	read := s.opts.BootID
	if read == nil {
		if runtime.GOOS != "linux" {
			return "", fmt.Errorf("%s has no %s with the kernel's boot ID: %s", runtime.GOOS, bootIDFile, advice)
		}
		read = func() (string, error) {
			text, err := os.ReadFile(bootIDFile)
			return string(text), err
		}
	}
	id, err := read()
	if err != nil {
		return "", fmt.Errorf("reading this kernel's boot ID: %w; %s", err, advice)
	}
	if id = strings.TrimSpace(id); id == "" {
		return "", fmt.Errorf("this kernel's boot ID is empty; %s", advice)
	}
	return id, nil
}
