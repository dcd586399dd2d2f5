// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// An unused containerd has the default socket. The node's own has a socket of its own, and later
// also that of k3s.
//
// Guard: [Source.list] returns an error in a search without any sandbox, and [DefaultEndpoints]
// has the socket of k3s.
func TestHazard53IdleRuntimeIsFoundOnContainerd(t *testing.T) {
	onEach(t, func(t *testing.T, n *node) {
		live, victim := n.run("live"), n.run("victim")
		n.leak(victim)
		n.startOtherContainerd()
		before := n.reservations(n.network)
		search := func(command string, flags ...string) pass {
			t.Helper()
			p, err := hostlocalGC(t.Context(), append([]string{command, "--network", n.network, "-o", "json", "--source", "cri"}, flags...)...)
			n.must(err)
			return p
		}
		for _, flags := range [][]string{nil, {"--allow-empty"}, {"--allow-empty", kernel}} {
			n.wantError(search("release", flags...), "unix:///run/containerd/containerd.sock (no sandbox)")
		}
		same(t, "reservations", "the node's own runtime was not found", before, n.reservations(n.network))

		t.Setenv(endpointEnv, n.endpoint())
		p := search("plan")
		same(t, "plan: "+p.stderr, "crictl's variable names it",
			joined(verdicts("in-use", live.ips...), verdicts("leaked", victim.ips...)), p.verdicts)
		t.Setenv(endpointEnv, "")

		n.must(os.MkdirAll("/run/k3s/containerd", 0o755))
		t.Cleanup(func() { n.must(os.RemoveAll("/run/k3s")) })
		n.must(os.Symlink(n.socket(), "/run/k3s/containerd/containerd.sock"))
		p = search("release")
		same(t, "released: "+p.stderr, "the node's own is found", holding(victim), p.released)
		same(t, "reservations", "after the pass", holding(live), n.reservations(n.network))
	})
}

// startOtherContainerd starts a second containerd with the default socket.
func (n *node) startOtherContainerd() {
	n.t.Helper()
	const dir, socket = "/run/containerd", "/run/containerd/containerd.sock"
	n.must(os.MkdirAll(dir, 0o755))
	cmd := exec.Command(filepath.Join(n.bin, "containerd"), "--config", n.path("config.toml"),
		"--address", socket, "--root", dir+"/root", "--state", dir+"/state")
	cmd.Env = append(os.Environ(), "PATH="+n.bin+":"+os.Getenv("PATH"), "TMPDIR="+nodeDir)
	n.must(cmd.Start())
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill() // the node's cleanup may have killed it
		_ = cmd.Wait()         // how it ended was our doing
		n.must(os.RemoveAll(dir))
	})
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	n.must(err)
	n.t.Cleanup(func() { _ = conn.Close() }) // nothing uses it any more
	n.await("the other containerd to answer", func(ctx context.Context) error {
		answer, err := runtimeapi.NewRuntimeServiceClient(conn).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
		if err == nil && len(answer.GetItems()) > 0 {
			err = errors.New("it has sandboxes")
		}
		return err
	})
}
