// SPDX-License-Identifier: Apache-2.0

// Package podfile is a source of pods that reads a file.
package podfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	sigsjson "sigs.k8s.io/json"

	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
)

// A pod is an entry of a list. A field that is null or empty is unknown.
type pod struct {
	Namespace    string       `json:"namespace"`
	Name         string       `json:"name"`
	UID          types.UID    `json:"uid"`
	ContainerIDs []string     `json:"containerIDs"`
	IPs          []netip.Addr `json:"ips"`
	StartedAt    time.Time    `json:"startedAt"`
	FinishedAt   time.Time    `json:"finishedAt"`
	Finished     bool         `json:"finished"`
	HostNetwork  bool         `json:"hostNetwork"`
	MoreIPs      bool         `json:"moreIPs"`
	Network      string       `json:"network"`
}

// convert returns a pod, whose elements are all known.
func (p *pod) convert() (podsource.Pod, error) {
	out := podsource.Pod{
		NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: p.UID, ContainerIDs: p.ContainerIDs,
		StartedAt: p.StartedAt, FinishedAt: p.FinishedAt, Finished: p.Finished,
		HostNetwork: p.HostNetwork, MoreIPs: p.MoreIPs, Network: p.Network,
	}
	if slices.Contains(p.ContainerIDs, "") {
		return out, errors.New(`"containerIDs" has an element that is null or empty`)
	}
	for _, ip := range p.IPs {
		if !ip.IsValid() || ip.Zone() != "" {
			return out, fmt.Errorf(`"ips" has an element that is null or empty, or has a zone, which no reservation has: %q`, ip)
		}
		out.IPs = append(out.IPs, ip.Unmap())
	}
	if p.Network != "" && !hostlocal.ValidName(p.Network) { // the addresses would be claimed in no network
		return out, fmt.Errorf("%q is not the name of a network", p.Network)
	}
	return out, nil
}

// maxFile limits the size of a list of pods. A node's list has a few hundred KiB. The limit
// protects the memory from file:/dev/zero.
const maxFile = 64 << 20

// New returns a source that reads the file at path at each call: a JSON array of pods (see decode). The path -
// is stdin, which is read once, at the first call, and used for every pass of this process. Nil is no standard input.
func New(path string, stdin io.Reader) (podsource.Source, error) {
	read := func() (podsource.Answer, error) {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) { // the next alternative is asked then
			return podsource.Answer{}, fmt.Errorf("%w: %w", podsource.ErrNotHere, err)
		}
		if err != nil {
			return podsource.Answer{}, err
		}
		defer func() { _ = f.Close() }() // only read
		return answer(f)
	}
	switch {
	case path == "":
		return nil, errors.New("a path is missing after the colon")
	case path == "-" && stdin == nil:
		return nil, errors.New("there is no standard input to read from")
	case path == "-":
		read = sync.OnceValues(func() (podsource.Answer, error) { return answer(stdin) })
	}
	return podsource.AnswerFunc(func(context.Context) (podsource.Answer, error) {
		a, err := read()
		if a.Source = "file"; err != nil {
			return a, fmt.Errorf("file:%s: %w", path, err)
		}
		return a, nil
	}), nil
}

// answer reads all of r. The list counts as of the file's modification time (R5, hazards 62 and
// 75), or of the beginning of the read if r is no regular file.
func answer(r io.Reader) (podsource.Answer, error) {
	asOf := time.Now()
	if f, ok := r.(fs.File); ok {
		info, err := f.Stat()
		if err != nil {
			return podsource.Answer{}, err
		}
		if info.Mode().IsRegular() {
			asOf = info.ModTime()
		}
	}
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return podsource.Answer{}, err
	}
	if len(text) > maxFile {
		return podsource.Answer{}, fmt.Errorf("longer than %d MiB", maxFile>>20)
	}
	pods, err := decode(text)
	return podsource.Answer{Pods: pods, Networks: []string{podsource.EveryNetwork}, AsOf: asOf}, err
}

// decode decodes a JSON array of pods, with the fields of [podsource.Pod]. It returns all pods or an error (R2). Text that
// ends early or continues after the array, an unknown or repeated field, an invalid address or time make the whole list invalid.
// Otherwise a mistyped "ip" could cost a pod its address.
func decode(text []byte) ([]podsource.Pod, error) {
	var list []*pod
	wrong, err := sigsjson.UnmarshalStrict(text, &list) // in the letters of the keys, too
	if err = errors.Join(append(wrong, err)...); err != nil || list == nil {
		return nil, fmt.Errorf("it must be an array of pods, [] without any: %w", cmp.Or(err, errors.New("it is null")))
	}
	pods := make([]podsource.Pod, len(list))
	for i, p := range list {
		err := errors.New("it is null")
		if p != nil {
			pods[i], err = p.convert()
		}
		if err != nil {
			return nil, fmt.Errorf("pod %d: %w", i+1, err)
		}
	}
	return pods, nil
}
