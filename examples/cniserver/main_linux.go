// SPDX-License-Identifier: Apache-2.0

// Command cniserver is a CNI plugin and its server, structured like the plugins of
// network vendors:
//
//	cniserver          called by the runtime; forwards the request to the server
//	cniserver serve    delegates to a plugin with host-local, such as bridge, and keeps the
//	                   record of attachments from which leaks are known
//
// The server shows how to neither leak nor release an address wrongly, whenever it
// is killed. ADD is: write the intent, reserve, plumb, record. DEL is: write the intent,
// unplumb, release, forget. Each step can be repeated. Before the server listens, it
// finishes interrupted requests and runs the start-up hook. See README.md beside this file.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/hostlocal-gc/hostlocal-gc/gc"
	"github.com/hostlocal-gc/hostlocal-gc/hostlocal"
)

func main() {
	if len(os.Args) < 2 || os.Args[1] != "serve" {
		skel.PluginMainFuncs(skel.CNIFuncs{
			Add: forward("ADD"), Del: forward("DEL"), Check: forward("CHECK"), GC: forward("GC"), Status: forward("STATUS"),
		}, version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), "cniserver: forwards requests to its server (see cniserver serve -h)")
		return
	}
	if err := serve(parse(os.Args[2:])); err != nil {
		fmt.Fprintln(os.Stderr, "cniserver:", err)
		os.Exit(1)
	}
}

// options are the flags of serve.
type options struct {
	runDir, stateDir, dataDir string
	networks, sources         []string
	gcMinAge, timeout         time.Duration
	nested                    bool
}

// parse reads the flags. It ends the process if they are wrong.
func parse(args []string) (o options) {
	f := flag.NewFlagSet("cniserver serve", flag.ExitOnError)
	list := func(name, usage string, all *[]string) {
		f.Func(name, usage+" (repeatable)", func(s string) error { *all = append(*all, s); return nil })
	}
	list("network", "`name` of a network to serve; no other server may serve its ADDs", &o.networks)
	list("source", "`KIND[:ARG]` of a source of containers that this server did not attach, as --source of hostlocal-gc: cri", &o.sources)
	f.StringVar(&o.runDir, "run-dir", "/run/cniserver", "`directory` of the socket and the intents, on a file system that a boot empties")
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/cniserver", "`directory` of the record")
	f.StringVar(&o.dataDir, "data-dir", hostlocal.DefaultDataDir, "host-local's data `directory`")
	f.DurationVar(&o.gcMinAge, "gc-min-age", gc.DefaultMinAge, "a GC detaches no younger attachment; see README.md")
	f.BoolVar(&o.nested, "nested", false, "the node is itself a container, as in kind")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "time limit of a request, and again of undoing an ADD that failed")
	_ = f.Parse(args) // ExitOnError
	return o
}

// socketName is the server's socket in its run-dir.
const socketName = "cniserver.sock"

// forward returns the plugin's function of a command: it sends the request to the server
// and prints the result. The server and the runtime limit the time. If the plugin is killed,
// the server completes the request.
func forward(command string) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		conf := struct{ Socket string }{"/run/cniserver/" + socketName}
		if err := json.Unmarshal(args.StdinData, &conf); err != nil {
			return types.NewError(types.ErrDecodingFailure, "reading the network configuration", err.Error())
		}
		result, err := send(conf.Socket, command, args)
		if err == nil && command == "ADD" {
			_, err = os.Stdout.Write(result)
		}
		return err
	}
}

// send sends a request to the server, and returns the result. It is an HTTP POST with the
// command as its path and skel.CmdArgs as its body. The answer is 200 with the result, or
// another status with a types.Error. CNI has no protocol for servers (containernetworking/cni#821);
// Multus and OVN-Kubernetes have such a one of their own, too.
//
// If the server does not answer, the error is ErrTryAgainLater: it begins to listen after its
// start-up hook.
func send(socket, command string, args *skel.CmdArgs) ([]byte, error) {
	body, _ := json.Marshal(args) // it has only strings and bytes
	client := http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) },
	}}
	var answer []byte
	resp, err := client.Post("http://cniserver/"+command, "application/json", bytes.NewReader(body))
	if err == nil {
		answer, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it is read to its end or its error
	}
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "asking the CNI server; is it running?", err.Error())
	}
	if resp.StatusCode == http.StatusOK {
		return answer, nil
	}
	e := new(types.Error)
	if err := json.Unmarshal(answer, e); err != nil || e.Code == 0 {
		e = types.NewError(types.ErrInternal, "the CNI server refuses the request: "+resp.Status, string(answer))
	}
	return nil, e
}
