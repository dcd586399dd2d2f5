// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
)

// add writes the intent, has the delegate reserve and plumb, and records. An ADD that
// fails is undone at once, even after its time limit. If that fails too, the next request
// for the attachment or the next start undoes it.
func (s *server) add(ctx context.Context, r *request, d *delegation) ([]byte, error) {
	if err := s.finishEarlier(ctx, r, d); err != nil {
		return nil, fmt.Errorf("finishing an earlier request for the attachment: %w", err)
	}
	if err := s.intents.write(&intent{request: *r, Network: d.network, NetNSID: netnsID(r.NetNS)}); err != nil {
		return nil, fmt.Errorf("writing the intent: %w", err)
	}
	failpoint(addIntended)
	result, err := s.attach(ctx, r, d)
	if err != nil {
		if noAddressLeft(err) {
			s.loop.Trigger()
		}
		ctx, cancel := s.withTimeLimit(ctx)
		defer cancel()
		return nil, errors.Join(err, s.detach(ctx, r, d))
	}
	return result, nil
}

func (s *server) attach(ctx context.Context, r *request, d *delegation) ([]byte, error) {
	result, err := s.delegate(ctx, "ADD", r, d)
	if err != nil {
		return nil, err
	}
	failpoint(addPlumbed)
	e, err := entryOf(r, d, result)
	if err == nil {
		err = s.record.Add(e)
	}
	if err != nil {
		return nil, err
	}
	failpoint(addRecorded)
	// As long as the intent is there, the next start undoes the attachment.
	if err := s.intents.remove(e.Key); err != nil {
		return nil, err
	}
	failpoint(addDone)
	return json.Marshal(result)
}

// del writes the intent, and then does what detach does.
func (s *server) del(ctx context.Context, r *request, d *delegation) error {
	// The intent may replace that of an interrupted ADD: the steps to undo it are the same.
	if err := s.intents.write(&intent{request: *r, Network: d.network, NetNSID: netnsID(r.NetNS)}); err != nil {
		return fmt.Errorf("writing the intent: %w", err)
	}
	failpoint(delIntended)
	if err := s.detach(ctx, r, d); err != nil {
		return err
	}
	failpoint(delDone)
	return nil
}

// check forwards CHECK to the delegate if the attachment is recorded.
func (s *server) check(ctx context.Context, r *request, d *delegation) error {
	for _, e := range s.record.Entries() {
		if e.Key == r.key(d.network) {
			_, err := s.delegate(ctx, "CHECK", r, d)
			return err
		}
	}
	return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("%s is not recorded", r.key(d.network)), "")
}

// noAddressLeft reports whether an ADD failed because host-local has no free address.
func noAddressLeft(err error) bool { return strings.Contains(err.Error(), "no IP addresses available") }

// entryOf is the record's entry of a complete ADD.
func entryOf(r *request, d *delegation, result types.Result) (checkpoint.Entry, error) {
	e := checkpoint.Entry{Key: r.key(d.network), NetNS: checkpoint.NetNS{Path: r.NetNS}}
	current, err := types100.NewResultFromResult(result)
	if err != nil {
		return e, fmt.Errorf("reading the delegate's result: %w", err)
	}
	for _, ip := range current.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return e, fmt.Errorf("reading the delegate's result: %v is not an address", ip.Address)
		}
		e.IPs = append(e.IPs, addr.Unmap())
	}
	var k8s struct {
		types.CommonArgs
		K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID types.UnmarshallableString //nolint:staticcheck // the names of the arguments
	}
	k8s.IgnoreUnknown = true
	if err := types.LoadArgs(r.Args, &k8s); err != nil {
		return e, fmt.Errorf("reading CNI_ARGS: %w", err)
	}
	e.Pod = apitypes.NamespacedName{Namespace: string(k8s.K8S_POD_NAMESPACE), Name: string(k8s.K8S_POD_NAME)}
	e.UID = apitypes.UID(k8s.K8S_POD_UID)
	return e, nil
}

// validateAttachment returns an error if the container ID or the interface name is invalid.
func validateAttachment(r *request) error {
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		return err
	}
	if err := utils.ValidateInterfaceName(r.IfName); err != nil {
		return err
	}
	return nil // and not err: a nil *types.Error is an error that is not nil
}
