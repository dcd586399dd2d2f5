// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// checkNode checks that the Node of this name is this machine since its last boot (R9,
// hazard 23), and that the control plane gets its status from kubelet (hazard 55).
func (s *Source) checkNode(ctx context.Context) error {
	if s.opts.SkipNodeCheck {
		return nil
	}
	// Before the Node, since an error here then costs the API server nothing.
	bootID, err := s.bootID()
	if err != nil {
		return err
	}
	node, err := s.opts.GetNode(ctx, s.nodeName)
	switch {
	case apierrors.IsNotFound(err):
		return s.permanent(fmt.Errorf("there is no such Node: is this the name under which kubelet registered it? "+
			"In a pod that is spec.nodeName, and not always the host's name: %w", err))
	case err != nil:
		return explain(err, "reading its Node", `verb "get" on resource "nodes"`)
	case node == nil:
		return errors.New("reading its Node: got none, and no error")
	case node.Name != s.nodeName:
		return fmt.Errorf("reading its Node: got that of %q", node.Name)
	}
	if err := s.sameNode(node, bootID); err != nil {
		return err
	}
	return checkReporting(node)
}

// sameNode compares the UID and boot ID of the Node with the expected ones.
func (s *Source) sameNode(node *corev1.Node, bootID string) error {
	if want := s.opts.NodeUID; want != "" && node.UID != want {
		return s.permanent(fmt.Errorf("its Node has the UID %s, expected %s: it was deleted and created again, "+
			"or another machine has taken its name", node.UID, want))
	}
	got, booted, beat := strings.TrimSpace(node.Status.NodeInfo.BootID), bootedAt(), readiness(node).LastHeartbeatTime.Time
	switch {
	case got == bootID:
		return nil
	case got == "":
		return fmt.Errorf("%w: its Node has no boot ID, so kubelet has not reported yet", podsource.ErrIncomplete)
	case !booted.IsZero() && beat.After(booted) && !beat.After(time.Now()):
		return s.permanent(fmt.Errorf("its Node (UID %s) was reported at %v by a kernel with the boot ID %s, but this kernel's is %s, "+
			"and it has run since %v: this is the Node of another machine; is the node's name right?",
			node.UID, beat.UTC(), got, bootID, booted.UTC()))
	}
	return fmt.Errorf("%w: its Node (UID %s) was last reported by a kernel with the boot ID %s, but this kernel's is %s: "+
		"kubelet has not reported since the boot, or this is the Node of another machine; is the node's name right?",
		podsource.ErrIncomplete, node.UID, got, bootID)
}

// permanent returns err as a permanent error, unless the Node comes from the caller, whose
// cache may have another one later.
func (s *Source) permanent(err error) error {
	if !s.ownNode {
		return err
	}
	return fmt.Errorf("%w (%w)", err, podsource.ErrPermanent)
}

// checkReporting returns an error if the control plane gets no status from the Node's kubelet,
// for example because its certificate has expired. Such a kubelet may run pods that the API
// server does not know.
func checkReporting(node *corev1.Node) error {
	ready := readiness(node)
	switch ready.Status {
	case corev1.ConditionTrue, corev1.ConditionFalse:
		return nil
	case "":
		return fmt.Errorf("%w: its Node has no condition Ready, so kubelet has not reported yet", podsource.ErrIncomplete)
	}
	return fmt.Errorf("%w: its Node is Ready=%s since %v (%s: %s): the control plane gets no status from its kubelet, "+
		"so its list of pods is old; is kubelet running, and its certificate valid?",
		podsource.ErrIncomplete, ready.Status, ready.LastTransitionTime.UTC(), ready.Reason, ready.Message)
}

// readiness returns the Node's condition Ready, or one without a status and a time. Its heartbeat is the
// time of kubelet's last report of the node's state, by the node's clock.
func readiness(node *corev1.Node) (none corev1.NodeCondition) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return none
}

// bootIDFile has the boot ID on Linux. kubelet reads the same file.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// bootID returns the boot ID of this kernel, which is never empty.
func (s *Source) bootID() (string, error) {
	const advice = "set Options.BootID, or SkipNodeCheck to trust the node's name"
	read := s.opts.BootID
	if read == nil {
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

// bootedAt returns the time at which this kernel booted, by its clock, or zero if it is
// unknown (proc(5): the line btime of /proc/stat).
func bootedAt() time.Time {
	text, _ := os.ReadFile("/proc/stat") // after an error it has no such line
	_, after, _ := strings.Cut(string(text), "\nbtime ")
	seconds, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(n, 0)
}
