// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/go-logr/logr"
	"k8s.io/utils/keymutex"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
	"github.com/hostlocal-gc/hostlocal-gc/podsource"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/checkpoint"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/cnigc"
)

// A request is a CNI request for the delegate, whose configuration is in that of this plugin:
//
//	{"cniVersion": "1.1.0", "name": "podnet", "type": "cniserver", "socket": "…",
//	 "delegate": {"type": "bridge", …, "ipam": {"type": "host-local", …}}}
type request struct {
	skel.CmdArgs                // StdinData is the delegate's configuration
	Key          checkpoint.Key // the attachment; of a GC and of STATUS the network alone
	Plugin       string         // the delegate
	// NetNSID identifies the namespace at CmdArgs.Netns: another one may be there later.
	NetNSID string
	valid   *cnigc.Source // what a GC lists, from when the request was read
}

// newRequest reads a request. It refuses what the server could not undo: other IPAM
// plugins, reservations outside of the data directory, and ipMasq, since its rules can't be
// removed once the addresses are gone. The plugin and the delegate check the other arguments.
func (o options) newRequest(args skel.CmdArgs) (*request, error) {
	var whole, delegate map[string]json.RawMessage
	var known struct {
		Name, Type string
		IPMasq     bool
		IPAM       struct{ Type, DataDir string }
	}
	known.IPAM.DataDir = hostlocal.DefaultDataDir
	err := errors.Join(json.Unmarshal(args.StdinData, &whole), json.Unmarshal(whole["delegate"], &delegate))
	maps.Copy(whole, delegate) // beside the name, the version and what the runtime adds
	delete(whole, "delegate")
	args.StdinData, _ = json.Marshal(whole) // its values were read from JSON
	err = errors.Join(err, json.Unmarshal(args.StdinData, &known))
	switch {
	case err != nil:
		err = fmt.Errorf(`reading "delegate", a plugin's configuration: %w`, err)
	case !slices.Contains(o.networks, known.Name):
		err = fmt.Errorf("network %q is not served here; start the server with --network %s", known.Name, known.Name)
	case known.IPAM.Type != "host-local" || filepath.Clean(known.IPAM.DataDir) != filepath.Clean(o.dataDir) || known.IPMasq:
		err = fmt.Errorf(`"delegate" must have the IPAM plugin host-local, with the dataDir %s, and no ipMasq`, o.dataDir)
	}
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	key := checkpoint.Key{Network: known.Name, ContainerID: args.ContainerID, IfName: args.IfName}
	return &request{args, key, known.Type, netnsID(args.Netns), nil}, nil
}

// A server handles CNI requests. Its state is on the disk: the record of complete
// attachments, the intents of unfinished requests, and host-local's reservations.
type server struct {
	options
	store   *hostlocal.Store
	record  *checkpoint.Checkpoint
	intents *intents
	source  podsource.Source // of containers that this server did not attach; may be nil
	loop    *gc.Reconciler
	log     logr.Logger

	// gcLock is locked by a GC, and read-locked by the other requests but STATUS.
	gcLock sync.RWMutex
	// containers serializes the requests of a container.
	containers keymutex.KeyMutex
}

// ServeHTTP handles a request of the plugin.
func (s *server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	command := strings.TrimPrefix(req.URL.Path, "/")
	var args skel.CmdArgs
	var answer any
	body, err := io.ReadAll(req.Body) // the whole body: only then does the HTTP server notice that the plugin ends
	if err = errors.Join(err, json.Unmarshal(body, &args)); err == nil {
		answer, err = s.handle(req.Context(), command, args)
	}
	if err != nil {
		s.log.Error(err, "Request failed", "command", command, "containerID", args.ContainerID, "ifName", args.IfName)
		e := types.NewError(types.ErrInternal, err.Error(), "") // with all of its text
		if cause := new(types.Error); errors.As(err, &cause) && cause.Code != 0 {
			e.Code = cause.Code
		}
		answer = e
		w.WriteHeader(http.StatusInternalServerError)
	}
	_ = json.NewEncoder(w).Encode(answer) // the plugin may have ended
}

// handle handles a request, and returns its result if the command has one. A GC runs alone,
// STATUS at any time, and other requests one at a time for each container. The time limit begins
// after the wait for them.
//
// If the plugin ends while its request runs, the request is completed, since half of it
// would be worse. If it ends before, the request is dropped: the runtime has given up, and
// may have sent the opposite request.
func (s *server) handle(ctx context.Context, command string, args skel.CmdArgs) (types.Result, error) {
	r, err := s.newRequest(args)
	if err != nil {
		return nil, err
	}
	switch command {
	case "GC":
		r.valid, err = cnigc.New(r.StdinData, cnigc.Options{MaxAge: min(s.gcMinAge, cnigc.DefaultMaxAge)}) // its age counts while it waits
		if err != nil {
			return nil, err
		}
		s.gcLock.Lock()
		defer s.gcLock.Unlock()
	case "ADD", "DEL", "CHECK":
		s.gcLock.RLock()
		defer s.gcLock.RUnlock()
		s.containers.LockKey(r.ContainerID)
		defer func() { _ = s.containers.UnlockKey(r.ContainerID) }() // the error is always nil
	}
	if err := ctx.Err(); err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "the plugin ended while its request waited for others", err.Error())
	}
	ctx, cancel := s.withTimeLimit(ctx)
	defer cancel()
	switch command {
	case "ADD":
		return s.add(ctx, r)
	case "DEL":
		return nil, s.detach(ctx, r)
	case "GC":
		return nil, s.gc(ctx, r)
	}
	return s.delegate(ctx, command, r) // CHECK and STATUS; it refuses all else
}

// withTimeLimit returns a context with a time limit of its own, which does not end with ctx.
func (s *server) withTimeLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
}

// add writes the intent, has the delegate reserve and plumb, and records. An ADD that
// fails is undone at once, even after its time limit. If that fails too, a DEL or the next
// start undoes it.
func (s *server) add(ctx context.Context, r *request) (types.Result, error) {
	_, recorded := s.record.Get(r.Key)
	_, unfinished := s.intents.all()[r.Key.String()]
	if recorded || unfinished {
		return nil, fmt.Errorf("%s is attached, or has a request that could not be finished; DEL must come before ADD", r.Key)
	}
	if err := s.intents.set(r.Key, r); err != nil {
		return nil, fmt.Errorf("writing the intent: %w", err)
	}
	result, err := s.delegate(ctx, "ADD", r)
	if err == nil {
		err = s.recordADD(r, result)
	}
	if err == nil {
		err = s.intents.set(r.Key, nil) // as long as it is there, the next start undoes the ADD
	}
	if err == nil {
		return result, nil
	}
	if strings.Contains(err.Error(), "no IP addresses available") { // host-local's words
		s.loop.Trigger()
	}
	ctx, cancel := s.withTimeLimit(ctx)
	defer cancel()
	return nil, errors.Join(err, s.detach(ctx, r))
}

// detach writes the intent, which may replace that of an interrupted ADD, unplumbs, releases,
// forgets, and removes the intent. Each step may already be done. If one fails, those after it
// are not done and the intent stays, so that the request can be repeated. It unplumbs first,
// since delegates release an address that a container still has.
func (s *server) detach(ctx context.Context, r *request) error {
	if err := s.intents.set(r.Key, r); err != nil {
		return fmt.Errorf("writing the intent: %w", err)
	}
	gone, err := s.unplumb(*r)
	if err != nil {
		return err
	}
	if _, err := s.delegate(ctx, "DEL", &gone); err != nil {
		return fmt.Errorf("releasing the addresses of %s: %w", r.Key, err)
	}
	if err := s.record.Remove(r.Key); err != nil {
		return err
	}
	return s.intents.set(r.Key, nil)
}

// gc detaches the recorded attachments of its network that are not valid, releases addresses
// that are not recorded by a pass, and forwards the request.
//
// Attachments younger than the minimum age stay: the runtime may have made its list before
// their ADD ended. A request that has waited longer than that for others is an error. The pass
// asserts nothing, and so keeps what is young: an ADD of the server before this one may be in
// flight, and its container is in no list.
func (s *server) gc(ctx context.Context, r *request) error {
	answer, err := r.valid.Pods(ctx)
	if err != nil {
		return err
	}
	for _, e := range s.record.Entries() {
		isValid := slices.ContainsFunc(answer.Pods, func(p podsource.Pod) bool { return slices.Contains(p.ContainerIDs, e.ContainerID) })
		if e.Network != r.Key.Network || isValid || time.Since(e.Time) < s.gcMinAge {
			continue
		}
		one := *r
		one.Key, one.ContainerID, one.IfName = e.Key, e.ContainerID, e.IfName
		if e.NetNS.Present() {
			one.Netns, one.NetNSID = e.NetNS.Path, netnsID(e.NetNS.Path)
		}
		err = errors.Join(err, s.detach(ctx, &one))
	}
	// In this network alone, since the request speaks of no other (hazard 74).
	once, wrong := gc.New(s.store, []string{r.Key.Network}, podsource.Union(r.valid, s.record, s.intents), gc.Options{Logger: s.log})
	if wrong == nil {
		_, wrong = once.Reconcile(ctx)
	}
	_, failed := s.delegate(ctx, "GC", r)
	return errors.Join(err, wrong, failed)
}

// delegate runs the delegate.
func (s *server) delegate(ctx context.Context, command string, r *request) (types.Result, error) {
	path, err := invoke.FindInPath(r.Plugin, filepath.SplitList(r.Path))
	if err != nil {
		return nil, err
	}
	args := &invoke.Args{
		Command: command, ContainerID: r.ContainerID, NetNS: r.Netns, IfName: r.IfName, PluginArgsStr: r.Args, Path: r.Path,
	}
	if command == "ADD" {
		return invoke.ExecPluginWithResult(ctx, path, r.StdinData, args, &group{})
	}
	return nil, invoke.ExecPluginWithoutResult(ctx, path, r.StdinData, args, &group{})
}

// A group runs a plugin, and after an error or the time limit ends what it has started, too: that
// might keep the plugin's output open for ever, or reserve an address after the DEL.
type group struct{ invoke.DefaultExec }

// ExecPlugin is of [invoke.Exec].
func (*group) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(ctx, path)
	c.Env, c.Stdin, c.Stdout, c.Stderr = env, bytes.NewReader(stdin), &stdout, &stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 2 * time.Second
	err := c.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if c.Process != nil {
		_ = c.Cancel() // none of them may be left
	}
	e := new(types.Error)
	if json.Unmarshal(stdout.Bytes(), e) != nil || e.Code == 0 {
		e.Msg = fmt.Sprintf("running %s: %v: %s", path, err, &stderr)
	}
	return nil, e
}

// recordADD records a complete ADD.
func (s *server) recordADD(r *request, result types.Result) error {
	current, err := types100.NewResultFromResult(result)
	if err != nil {
		return fmt.Errorf("reading the delegate's result: %w", err)
	}
	e := checkpoint.Entry{Key: r.Key, NetNS: checkpoint.NetNS{Path: r.Netns}}
	for _, ip := range current.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP) // Add refuses an invalid one
		e.IPs = append(e.IPs, addr.Unmap())
	}
	for arg := range strings.SplitSeq(r.Args, ";") {
		if value, ok := strings.CutPrefix(arg, "K8S_POD_NAMESPACE="); ok {
			e.Pod.Namespace = value
		} else if value, ok := strings.CutPrefix(arg, "K8S_POD_NAME="); ok {
			e.Pod.Name = value
		}
	}
	return s.record.Add(e)
}

// intents are the requests that are not finished: each ADD or DEL is among them before its
// first step, and until its last one, with all that the server needs to undo the ADD or to
// complete the DEL. They are a source of pods.
//
// The record can't replace them, since it has complete attachments only. If the server died
// after plumbing and before recording, nothing would tell which namespace has the address.
// After a boot no namespace has one: so they are in a file on a file system that a boot empties,
// and it needs no fsync.
type intents struct {
	path     string
	networks []string  // the served ones
	opened   time.Time // when the record was opened

	mu   sync.Mutex          // guards left
	left map[string]*request // as in the file, by the attachment's key; replaced, never changed
}

// load reads the intents of the server before this one.
func (in *intents) load() error {
	content, err := os.ReadFile(in.path)
	if errors.Is(err, fs.ErrNotExist) {
		content, err = []byte("{}"), nil
	}
	if err = cmp.Or(err, json.Unmarshal(content, &in.left)); err != nil {
		err = fmt.Errorf("reading the unfinished requests: %w; if %s is damaged, reboot, or end all pods and remove it", err, in.path)
	}
	return err
}

// set notes the request of an attachment, or with nil that none is left. A server that is
// killed leaves the old file or the new one.
func (in *intents) set(k checkpoint.Key, r *request) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	next := maps.Clone(in.left)
	if next[k.String()] = r; r == nil {
		delete(next, k.String())
	}
	content, _ := json.Marshal(next) // it has only strings and bytes
	err := os.WriteFile(in.path+".tmp", content, 0o600)
	if err == nil {
		err = os.Rename(in.path+".tmp", in.path)
	}
	if err == nil {
		in.left = next
	}
	return err
}

// all returns the intents by the keys of their attachments. The map must not be changed.
func (in *intents) all() map[string]*request {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.left
}

// Rank orders the intents before the record: an ADD is recorded before its intent is
// removed, so a container without an intent is already in the record (hazard 58).
func (in *intents) Rank() podsource.Rank { return podsource.RankADDs }

// Pods are the containers with an unfinished request. Each ADD of this server is among them
// until it is recorded. So they are all ADDs in flight of the served networks, and of no others,
// once no ADD of a server before this one can be in flight.
func (in *intents) Pods(context.Context) (podsource.Answer, error) {
	a := podsource.Answer{Source: "intents", Supplementary: true}
	if time.Since(in.opened) > checkpoint.DefaultLag {
		a.SeesADDs = in.networks
	}
	for _, r := range in.all() {
		a.Pods = append(a.Pods, podsource.Pod{ContainerIDs: []string{r.ContainerID}, Origin: in.path})
	}
	return a, nil
}
