// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// versions are the supported versions of the CNI specification.
var versions = version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")

func runPlugin() {
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add: forward("ADD"), Del: forward("DEL"), Check: forward("CHECK"), GC: forward("GC"), Status: forward("STATUS"),
	}, versions, "cniserver: forwards requests to the server on this node")
}

// forward returns the plugin's function of a command: it sends the request to the server
// and prints the result. The server and the runtime limit the time. If the plugin is killed,
// the server completes the request.
func forward(command string) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		var conf struct {
			Socket string `json:"socket"`
		}
		if err := json.Unmarshal(args.StdinData, &conf); err != nil {
			return types.NewError(types.ErrDecodingFailure, "reading the network configuration", err.Error())
		}
		socket := conf.Socket
		if socket == "" {
			socket = defaultSocket
		}
		result, err := send(socket, &request{
			Command: command, ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName,
			Args: args.Args, Path: args.Path, Config: args.StdinData,
		})
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(result)
		return err
	}
}

// send sends a request to the server, and returns the result. If the server does not
// listen, the error is ErrTryAgainLater: it begins to listen after its start-up hook.
func send(socket string, r *request) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) },
	}}
	resp, err := client.Post("http://cniserver"+requestPath, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "sending the request to the CNI server; is it running?", err.Error())
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "reading the CNI server's answer", err.Error())
	}
	if resp.StatusCode == http.StatusOK {
		return answer, nil
	}
	var e types.Error
	if _ = json.Unmarshal(answer, &e); e.Code == 0 { // also if it is not JSON
		return nil, fmt.Errorf("the CNI server refuses the request: %s: %s", resp.Status, answer)
	}
	return nil, &e
}

// cniError returns err as a CNI error, with its code and all of its text.
func cniError(err error) *types.Error {
	if e, ok := err.(*types.Error); ok && e.Code != 0 { //nolint:errorlint // if it is wrapped, it has a part of the text only
		return e
	}
	var e *types.Error
	if errors.As(err, &e) && e.Code != 0 {
		return types.NewError(e.Code, err.Error(), "")
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}
