// SPDX-License-Identifier: Apache-2.0

package podfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// decodePod decodes one object key by key. encoding/json alone would accept "IPS" for "ips" and the
// last of two equal keys.
func decodePod(dec *json.Decoder) (podsource.Pod, error) {
	var p podsource.Pod
	fields := map[string]any{
		"namespace": &p.Namespace, "name": &p.Name, "uid": &p.UID,
		"containerIDs": (*ids)(&p.ContainerIDs), "ips": (*addresses)(&p.IPs),
		"startedAt": &p.StartedAt, "finishedAt": &p.FinishedAt, "finished": &p.Finished, "hostNetwork": &p.HostNetwork,
		"moreIPs": &p.MoreIPs, "network": (*network)(&p.Network),
	}
	if err := expect(dec, '{'); err != nil {
		return p, fmt.Errorf("it must be an object: %w", err)
	}
	for dec.More() {
		t, err := token(dec)
		if err != nil {
			return p, err
		}
		key, _ := t.(string) // the decoder returns no other type here
		field, ok := fields[key]
		if !ok {
			return p, fmt.Errorf("unknown field %q", key)
		}
		if field == nil {
			return p, fmt.Errorf("field %q is given twice", key)
		}
		if err := dec.Decode(field); err != nil {
			return p, fmt.Errorf("field %q: %w", key, early(err))
		}
		fields[key] = nil
	}
	return p, expect(dec, '}')
}

// network is the name of a network. With an invalid name the addresses would be claimed in no
// network.
type network string

func (n *network) UnmarshalJSON(text []byte) error {
	var name *string
	if err := json.Unmarshal(text, &name); err != nil || name == nil {
		return err
	}
	if !hostlocal.ValidName(*name) {
		return fmt.Errorf("%q is not the name of a network", *name)
	}
	*n = network(*name)
	return nil
}

// ids are container IDs. None may be null.
type ids []string

func (s *ids) UnmarshalJSON(text []byte) error {
	return each(text, func(id string) error {
		if id == "" {
			return errors.New("a container ID is empty")
		}
		*s = append(*s, id)
		return nil
	})
}

// addresses are IP addresses without prefix length or zone.
type addresses []netip.Addr

func (a *addresses) UnmarshalJSON(text []byte) error {
	return each(text, func(s string) error {
		ip, err := netip.ParseAddr(s)
		switch {
		case err != nil && strings.Contains(s, "/"):
			return fmt.Errorf("%q is a prefix; give the address alone", s)
		case err != nil:
			return fmt.Errorf("%q is not an IP address", s)
		case ip.Zone() != "":
			return fmt.Errorf("%q has a zone, which no reservation has", s)
		}
		*a = append(*a, ip.Unmap())
		return nil
	})
}

// each calls f for each string of an array. The array may be null, but its elements may not: that
// would be an item that could not be read (R2).
func each(text []byte, f func(string) error) error {
	var list []*string
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	for _, s := range list {
		if s == nil {
			return errors.New("an element is null")
		}
		if err := f(*s); err != nil {
			return err
		}
	}
	return nil
}
