// SPDX-License-Identifier: Apache-2.0

package podfile

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A pod is an entry of a list. An element or a name that is null or empty differs from none.
type pod struct {
	Namespace    string     `json:"namespace"`
	Name         string     `json:"name"`
	UID          types.UID  `json:"uid"`
	ContainerIDs []*string  `json:"containerIDs"`
	IPs          []*string  `json:"ips"`
	StartedAt    *time.Time `json:"startedAt"`
	FinishedAt   *time.Time `json:"finishedAt"`
	Finished     bool       `json:"finished"`
	HostNetwork  bool       `json:"hostNetwork"`
	MoreIPs      bool       `json:"moreIPs"`
	Network      *string    `json:"network"`
}

func (p *pod) convert() (podsource.Pod, error) {
	out := podsource.Pod{
		NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: p.UID,
		Finished: p.Finished, HostNetwork: p.HostNetwork, MoreIPs: p.MoreIPs,
	}
	if p.StartedAt != nil {
		out.StartedAt = *p.StartedAt
	}
	if p.FinishedAt != nil {
		out.FinishedAt = *p.FinishedAt
	}
	for _, id := range p.ContainerIDs {
		if id == nil || *id == "" {
			return out, errors.New(`"containerIDs" has an element that is null or empty`)
		}
		out.ContainerIDs = append(out.ContainerIDs, *id)
	}
	for _, text := range p.IPs {
		if text == nil {
			return out, errors.New(`"ips" has an element that is null`)
		}
		ip, err := netip.ParseAddr(*text)
		switch {
		case err != nil && strings.Contains(*text, "/"):
			return out, fmt.Errorf("%q is a prefix; give the address alone", *text)
		case err != nil:
			return out, fmt.Errorf("%q is not an IP address", *text)
		case ip.Zone() != "":
			return out, fmt.Errorf("%q has a zone, which no reservation has", *text)
		}
		out.IPs = append(out.IPs, ip.Unmap())
	}
	if p.Network != nil { // with an invalid name the addresses would be claimed in no network
		if !hostlocal.ValidName(*p.Network) {
			return out, fmt.Errorf("%q is not the name of a network", *p.Network)
		}
		out.Network = *p.Network
	}
	return out, nil
}
