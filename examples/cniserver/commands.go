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

// add is intend, reserve and plumb (both are the delegate's), record. What fails
// is undone at once, also when its time was up, and by the next request or the next
// start if that fails too.
func (s *server) add(ctx context.Context, r *request, d *delegation) ([]byte, error) {
	if err := s.settle(ctx, r, d); err != nil {
		return nil, fmt.Errorf("ending what an earlier request left: %w", err)
	}
	if err := s.intents.write(&intent{request: *r, Network: d.network, NetNSID: netnsID(r.NetNS)}); err != nil {
		return nil, fmt.Errorf("writing down what is to be done: %w", err)
	}
	at(addIntended)
	result, err := s.attach(ctx, r, d)
	if err != nil {
		if full(err) {
			s.loop.Trigger()
		}
		ctx, cancel := s.inTime(ctx)
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
	at(addPlumbed)
	e, err := entryOf(r, d, result)
	if err == nil {
		err = s.record.Add(e)
	}
	if err != nil {
		return nil, err
	}
	at(addRecorded)
	// With the intent still there the next start would undo what a pod uses.
	if err := s.intents.forget(e.Key); err != nil {
		return nil, err
	}
	at(addDone)
	return json.Marshal(result)
}

// del is intend, unplumb, release, forget.
func (s *server) del(ctx context.Context, r *request, d *delegation) error {
	// An ADD that ended half-way is no other case: the steps are the same.
	if err := s.intents.write(&intent{request: *r, Network: d.network, NetNSID: netnsID(r.NetNS)}); err != nil {
		return fmt.Errorf("writing down what is to be done: %w", err)
	}
	at(delIntended)
	if err := s.detach(ctx, r, d); err != nil {
		return err
	}
	at(delDone)
	return nil
}

// check asks the record and the delegate.
func (s *server) check(ctx context.Context, r *request, d *delegation) error {
	for _, e := range s.record.Entries() {
		if e.Key == r.key(d.network) {
			_, err := s.delegate(ctx, "CHECK", r, d)
			return err
		}
	}
	return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("%s is not recorded", r.key(d.network)), "")
}

// full reports whether an ADD failed because host-local has no address left.
func full(err error) bool { return strings.Contains(err.Error(), "no IP addresses available") }

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

// attachable refuses what names no attachment, whoever sent it.
func attachable(r *request) error {
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		return err
	}
	if err := utils.ValidateInterfaceName(r.IfName); err != nil {
		return err
	}
	return nil
}
