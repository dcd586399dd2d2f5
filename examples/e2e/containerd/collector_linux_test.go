// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// A pass is the result of one run of the command: its exit status, and the parts of its JSON
// that the cases use.
type pass struct {
	status   int
	stderr   string
	verdicts map[netip.Addr]string
	reasons  map[netip.Addr]string
	released map[netip.Addr]string // with their container IDs
}

func (p pass) String() string {
	return fmt.Sprintf("exit status %d, verdicts %v, reasons %v, stderr %q", p.status, p.verdicts, p.reasons, p.stderr)
}

// collector runs hostlocal-gc with the node's runtime as the source, and further flags. The
// default minimum age is seven minutes.
func (n *node) collector(ctx context.Context, command, network string, flags ...string) (pass, error) {
	args := append([]string{command, "--network", network, "-o", "json", "--source", "cri:" + n.endpoint()}, flags...)
	return hostlocalGC(ctx, args...)
}

// hostlocalGC runs the command, which prints a report as JSON.
func hostlocalGC(ctx context.Context, args ...string) (pass, error) {
	status, stdout, stderr, err := callHostlocalGC(ctx, args...)
	if err != nil {
		return pass{}, err
	}
	p := pass{
		status: status, stderr: stderr,
		verdicts: make(map[netip.Addr]string), reasons: make(map[netip.Addr]string), released: make(map[netip.Addr]string),
	}
	var report struct {
		Networks []struct {
			Name string `json:"name"`
		} `json:"networks"` // those to release in; the report has others, too
		Reservations []struct {
			Network     string     `json:"network"`
			IP          netip.Addr `json:"ip"`
			ContainerID string     `json:"containerID"`
			Verdict     string     `json:"verdict"`
			Reason      string     `json:"reason"`
		} `json:"reservations"`
	}
	if len(stdout) > 0 {
		if err := json.Unmarshal(stdout, &report); err != nil {
			return p, fmt.Errorf("hostlocal-gc %v: reading its output: %w: %s", args, err, stdout)
		}
	}
	for _, network := range report.Networks {
		for _, r := range report.Reservations {
			if r.Network != network.Name {
				continue
			}
			p.verdicts[r.IP], p.reasons[r.IP] = r.Verdict, r.Reason
			if r.Verdict == "released" {
				p.released[r.IP] = r.ContainerID
			}
		}
	}
	return p, nil
}

// callHostlocalGC runs the command. An exit status is not an error. The command gets its own
// PID namespace, which netns:nested requires if no container runs.
func callHostlocalGC(ctx context.Context, args ...string) (status int, stdout []byte, stderr string, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(binEnv), "hostlocal-gc"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); cmd.ProcessState == nil || !cmd.ProcessState.Exited() {
		return 0, nil, "", fmt.Errorf("hostlocal-gc %v: %w", args, err)
	}
	return cmd.ProcessState.ExitCode(), out.Bytes(), said.String(), nil
}

// release runs a pass that must succeed.
func (n *node) release(network string, flags ...string) pass {
	n.t.Helper()
	return n.succeed("release", network, flags...)
}

// plan runs a dry run that must succeed.
func (n *node) plan(network string, flags ...string) pass {
	n.t.Helper()
	return n.succeed("plan", network, flags...)
}

func (n *node) succeed(command, network string, flags ...string) pass {
	n.t.Helper()
	p, err := n.collector(n.t.Context(), command, network, flags...)
	n.must(err)
	if p.status != 0 {
		n.t.Fatalf("hostlocal-gc %s: %v", command, p)
	}
	return p
}
