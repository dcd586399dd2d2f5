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

// versions are those of the CNI specification that plugin and server speak.
var versions = version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")

func runPlugin() {
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add: forward("ADD"), Del: forward("DEL"), Check: forward("CHECK"), GC: forward("GC"), Status: forward("STATUS"),
	}, versions, "cniserver: passes requests on to the server on this node")
}

// forward returns the plugin's part of a command: to ask the server, and to
// print what it says. How long that takes is for the server and the runtime to
// say; a plugin that is killed leaves the server to end what it began.
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
		result, err := ask(socket, &request{
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

// ask sends one request. A server that is not there is ErrTryAgainLater: it
// listens once its start-up hook is through.
func ask(socket string, r *request) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Post("http://cniserver"+requestPath, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "asking the CNI server; is it running?", err.Error())
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "reading the CNI server's answer", err.Error())
	}
	if resp.StatusCode == http.StatusOK {
		return answer, nil
	}
	var said types.Error
	if err := json.Unmarshal(answer, &said); err != nil || said.Code == 0 {
		return nil, fmt.Errorf("the CNI server refuses the request: %s: %s", resp.Status, answer)
	}
	return nil, &said
}

// asCNI is err in the form in which CNI prints errors.
func asCNI(err error) *types.Error {
	if e, ok := err.(*types.Error); ok && e.Code != 0 { //nolint:errorlint // wrapped, its text is only a part
		return e
	}
	var e *types.Error
	if errors.As(err, &e) && e.Code != 0 {
		return types.NewError(e.Code, err.Error(), "")
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}
