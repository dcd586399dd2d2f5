// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hostlocal-gc/hostlocal-gc/examples/hostlocal-gc/internal/diagnose"
	"github.com/hostlocal-gc/hostlocal-gc/examples/internal/term"
	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/cniconf"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal/iprange"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

func (a *app) repairCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "repair",
		Short: "Reserve addresses of live pods again whose files are gone",
		Long: `Reserve addresses of live pods again whose files are gone, as after rm -rf of a
network's directory: host-local would hand them out again. Without --yes it only
shows what it would write. With --yes it writes a file as host-local does, with
its code and under its lock, only if

  - no file has the address, and no other pod in any source;
  - libcni's cache has it in one live entry, of a network that has its files in
    --data-dir, and the address in its range if that is known;
  - the kernel shows it in one network namespace, on that entry's interface, and
    a process is in the namespace;
  - no source says that the container has ended, is not ready or has another
    address. If it ends meanwhile, release frees the address.

It replaces no file. Of the others it says what disagrees, and their pods:
delete those, so that they are recreated.

Exit status: 0 all are or would be reserved, 1 one can't be, or an error.`,
		Example: `  hostlocal-gc repair
  hostlocal-gc repair --ip 10.244.1.7 --yes`,
		RunE: a.once(a.repair),
	}
	a.flags.dir(c)
	c.Flags().StringVar(&a.flags.cniDir, "cni-dir", defaultCNIDir, "`DIR` with the CNI configurations of the networks")
	c.Flags().StringArrayVar(&a.flags.ips, "ip", nil, "repair this `ADDRESS` only (repeatable; default all that the ranges have)")
	c.Flags().BoolVar(&a.flags.yes, "yes", false, "write the files")
	a.flags.once(c)
	return c
}

// A lost is a reservation without its file.
type lost struct {
	ip                           netip.Addr
	network, containerID, ifName string
}

// A container that ends after the sources were asked may leave a leak, which the next release ends.
func (a *app) repair(ctx context.Context) error {
	s, err := a.source()
	if err != nil {
		return err
	}
	chosen, err := a.flags.selection()
	if err != nil {
		return err
	}
	done, err := a.reconcile(ctx, hostlocal.New(a.flags.dataDir), []string{gc.AllNetworks}, s, dry)
	if err != nil {
		return err
	}
	confs, _, err := a.configurations() // libcni's entries have theirs, so those that can't be read are no error
	if err != nil {
		return err
	}
	given := func(c cniconf.Network) bool { return sameDirectory(c.DataDir, a.flags.dataDir) }
	_, none := os.Stat(hostlocal.DefaultDataDir)
	_, mistyped := os.Stat(a.flags.dataDir)
	mounted := errors.Is(none, fs.ErrNotExist) && mistyped == nil && !slices.ContainsFunc(confs, given) // the default, at --data-dir here
	here := func(c cniconf.Network) bool { return given(c) || mounted && c.DataDir == hostlocal.DefaultDataDir }
	var ours iprange.Set
	for _, c := range confs {
		if here(c) {
			ours = append(ours, slices.Concat(c.Ranges...)...)
		}
	}
	pods, atRisk := make(map[netip.Addr]string), make(map[netip.Addr]bool)
	for _, c := range slices.Concat(done.Unreserved, done.Duplicates) {
		pods[c.IP], atRisk[c.IP] = c.Pods[0].String(), len(ours) == 0 || c.AtRisk(ours)
	}
	for e := range diagnose.Entries(&done.Report) {
		if e.Verdict == gc.Conflict && e.Pod != nil && ours.Has(e.IP) { // it is another's
			pods[e.IP], atRisk[e.IP] = e.Pod.String(), true
		}
	}
	wanted := chosen
	if len(chosen) == 0 {
		wanted = slices.SortedFunc(maps.Keys(atRisk), netip.Addr.Compare)
	}
	f := facts{done.said, done.Reservations, make(map[string]cached), confs, here}
	if done.Err == nil && !slices.ContainsFunc(f.members, func(m podsource.Answer) bool { return isKernel(&m) }) {
		return errors.New("not all addresses of the kernel are known: --source netns sees them, as root and on the node")
	}
	m := mending{
		heading: "Addresses of live pods without a reservation, which can be reserved again:",
		none:    "Each address of a live pod in the ranges of " + a.flags.dataDir + " is reserved.",
		refused: make(map[string][]string),
	}
	for _, ip := range wanted {
		for _, p := range f.having(ip, isCache) {
			f.entries[p.Origin] = readCached(p.Origin)
		}
		if l, err := f.judge(ip); err == nil {
			m.all = append(m.all, mend{
				row:  []string{ip.String(), l.network, term.ID(l.containerID), l.ifName},
				what: fmt.Sprintf("Reserved %v in network %s again.", ip, l.network),
				do:   func(ctx context.Context) error { return l.reserve(ctx, a.flags.dataDir) },
			})
		} else if len(chosen) > 0 || atRisk[ip] {
			why := "can't be reserved again: " + err.Error()
			m.refused[why] = append(m.refused[why], strings.TrimSpace(ip.String()+" "+pods[ip]))
		}
	}
	return a.mend(ctx, &done, &m)
}

// reserve writes the file of a reservation as the plugin does, under its lock: it is made over no other. The plugin's note of
// the address that it gave last stays as it is, since the next one may be that of a live pod without a file.
func (l lost) reserve(ctx context.Context, dataDir string) error {
	dir := filepath.Join(dataDir, l.network)
	if info, err := os.Lstat(filepath.Join(dir, "lock")); err == nil && !info.Mode().IsRegular() { // which the plugin would open
		return fmt.Errorf("the lock in %s is no regular file, but %s", dir, info.Mode())
	}
	store, err := disk.New(l.network, dataDir)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { // which may wait for the lock for long
		err := store.Lock()
		if err = cmp.Or(err, ctx.Err()); err == nil {
			err = l.write(filepath.Join(dir, l.ip.String()))
		}
		done <- errors.Join(err, store.Close())
	}()
	select {
	case err = <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("another process holds the lock: %w", ctx.Err())
	}
}

func (l lost) write(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errors.New("a file has its name by now")
	} else if err != nil {
		return err
	}
	_, err = f.WriteString(l.containerID + disk.LineBreak + l.ifName)
	if err = cmp.Or(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// A cached is an entry of libcni's cache (cni, libcni cachedInfo), and what the kernel says of it.
type cached struct {
	IfName, NetNS string

	Config []byte
	Result struct{ Interfaces []struct{ Sandbox string } }

	onIf []netip.Addr // addresses of the interface in the namespace
	err  error
}

// readCached reads the entry of a pod of package cnicache, whose origin is the entry's file.
func readCached(origin string) (e cached) {
	text, err := os.ReadFile(strings.TrimPrefix(origin, "CNI cache "))
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	for _, i := range e.Result.Interfaces { // before libcni 1.2 an entry has no other path
		e.NetNS = cmp.Or(e.NetNS, i.Sandbox)
	}
	if err == nil {
		e.onIf, err = addressesOn(e.NetNS, e.IfName)
	}
	e.err = err
	return e
}

// addressesOn returns the addresses that the kernel shows on an interface in a network namespace. It enters that, since
// netlink's handles for another namespace look for this process in /proc, which may be that of another PID namespace.
func addressesOn(path, ifName string) (ips []netip.Addr, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good, so that the thread ends with the goroutine
		ips, err = addressesFrom(path, ifName)
	}()
	if <-done; err != nil {
		return nil, fmt.Errorf("interface %s in %s: %w", ifName, path, err)
	}
	return ips, nil
}

// addressesFrom is addressesOn, and leaves this thread in the namespace.
func addressesFrom(path, ifName string) (ips []netip.Addr, err error) {
	space, err := netns.GetFromPath(path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(netns.Set(space), space.Close()); err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(ifName)
	if err != nil {
		return nil, err
	}
	const every = 0 // netlink.FAMILY_ALL, which it has for Linux only
	addrs, err := netlink.AddrList(link, every)
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			ips = append(ips, ip.Unmap())
		}
	}
	return ips, err
}

// Facts are what is known of addresses without a reservation.
type facts struct {
	members      []podsource.Answer
	reservations []gc.Entry
	entries      map[string]cached          // by the origins of the cache's pods
	confs        []cniconf.Network          // of the node
	here         func(cniconf.Network) bool // it has its files in this data directory
}

func isKernel(m *podsource.Answer) bool { return m.SeesAddresses }
func isCache(m *podsource.Answer) bool  { return m.Cache != nil }

// having returns the pods with an address in the answers of a kind.
func (f *facts) having(ip netip.Addr, kind func(*podsource.Answer) bool) (pods []*podsource.Pod) {
	for i := range f.members {
		for j := range f.members[i].Pods {
			if p := &f.members[i].Pods[j]; kind(&f.members[i]) && slices.Contains(p.IPs, ip) {
				pods = append(pods, p)
			}
		}
	}
	return pods
}

// judge returns the reservation that an address had, or an error that says what disagrees.
func (f *facts) judge(ip netip.Addr) (lost, error) {
	for _, e := range f.reservations {
		if e.IP == ip {
			return lost{}, fmt.Errorf("it is reserved in network %s, by %s", e.Network, cmp.Or(term.ID(e.ContainerID), "an owner that is "+e.Owner.String()))
		}
	}
	namespaces, all := f.having(ip, isKernel), f.having(ip, isCache)
	named := func(p *podsource.Pod) bool {
		own, _ := cniconf.Parse(f.entries[p.Origin].Config)
		return slices.ContainsFunc(append(own, f.confs...), func(c cniconf.Network) bool { return c.Name == p.Network })
	}
	// Multus' own entry has the address, too, and the name of its network, which is none of host-local.
	entries := slices.DeleteFunc(slices.Clone(all), func(p *podsource.Pod) bool {
		return !named(p) && slices.ContainsFunc(all, func(q *podsource.Pod) bool {
			return named(q) && slices.Equal(p.ContainerIDs, q.ContainerIDs)
		})
	})
	switch {
	case len(namespaces) != 1:
		return lost{}, fmt.Errorf("the kernel shows it in %s", several(namespaces, "network namespace"))
	case namespaces[0].HostNetwork || namespaces[0].NotRunning:
		return lost{}, fmt.Errorf("the kernel shows it in no container, but in %s", namespaces[0].Origin)
	case len(entries) != 1:
		return lost{}, fmt.Errorf("libcni's cache has it in %s", several(entries, "live entry"))
	}
	p := entries[0]
	l, e := lost{ip, p.Network, p.ContainerIDs[0], f.entries[p.Origin].IfName}, f.entries[p.Origin]
	switch {
	case e.err != nil:
		return l, fmt.Errorf("%s: %w", p.Origin, e.err)
	case !slices.Contains(e.onIf, ip):
		return l, fmt.Errorf("by %s it is on %s in %s, where the kernel shows %v", p.Origin, e.IfName, e.NetNS, e.onIf)
	}
	return l, cmp.Or(f.checkPods(l), f.checkNetwork(l, e.Config))
}

// several counts pods that should be one, and says where they are.
func several(pods []*podsource.Pod, noun string) string {
	text := term.Count(len(pods), noun)
	for _, p := range pods {
		text += ", " + p.Origin
	}
	return text + ", instead of one"
}

// checkPods returns an error that names a pod of the other sources by which the address is not that of the container, or
// the container does not run.
func (f *facts) checkPods(l lost) error {
	sameFamily := func(ip netip.Addr) bool { return ip.Is4() == l.ip.Is4() }
	var name types.NamespacedName // of the pod that has it
	for i := range f.members {
		m := &f.members[i]
		for j := range m.Pods {
			p := &m.Pods[j]
			its, has := slices.Contains(p.ContainerIDs, l.containerID), slices.Contains(p.IPs, l.ip)
			switch {
			case isCache(m) || !its && (!has || p.HostNetwork || p.HasFinished()):
				continue
			case its && (p.HasFinished() || p.NotRunning):
				return fmt.Errorf("its container does not run: %s of source %s", podText(p), m.Source)
			case !its && len(p.ContainerIDs) > 0, p.Name != "" && name.Name != "" && p.NamespacedName != name:
				return fmt.Errorf("%s of source %s has it, too, and by libcni's cache container %s", podText(p), m.Source, term.ID(l.containerID))
			// A runtime reports the addresses of eth0 alone (containerd, internal/cri/server defaultIfName; CRI-O, ocicni).
			case !has && l.ifName == "eth0" && slices.ContainsFunc(p.IPs, sameFamily):
				return fmt.Errorf("%s of source %s has other addresses: %v", podText(p), m.Source, p.IPs)
			case p.Name != "":
				name = p.NamespacedName
			}
		}
	}
	return nil
}

// checkNetwork returns an error unless the data directory is that of the network, by the configuration of the ADD and by
// the node's of today, and the address is in its range. In the ADD's, conf, the range may be unknown, since the address
// came from host-local.
func (f *facts) checkNetwork(l lost, conf []byte) error {
	own, _ := cniconf.Parse(conf) // what can't be parsed names no network
	in := false
	for i, c := range append(own, f.confs...) {
		switch ranges := iprange.Set(slices.Concat(c.Ranges...)); {
		case c.Name != l.network:
		case !f.here(c):
			return fmt.Errorf("the files of network %s are in another data directory: --data-dir %s", c.Name, quoted(c.DataDir))
		default:
			in = in || ranges.Has(l.ip) || i < len(own) && c.Ranges == nil
		}
	}
	if !in {
		return fmt.Errorf("no configuration of network %s has it in a range of host-local "+
			"(Multus keeps the networks' entries: --source cnicache:/var/lib/cni/multus/results)", l.network)
	}
	return nil
}
