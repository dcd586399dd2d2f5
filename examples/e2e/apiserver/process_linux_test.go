// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// A process is a child process that is killed when this process ends.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when Wait has returned
	err   error         // of Wait; valid after ended is closed
}

// startProcess runs a program in dir, and appends its output to name.log there.
func startProcess(dir, name, path string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	// Not the environment of the test, which may have ETCD_... variables and proxies.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the child ends, so
		// this goroutine keeps its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { _ = log.Close() }() // the child has its own descriptor
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// kill kills the process, and returns when it has ended.
func (p *process) kill() {
	if p != nil {
		_ = p.cmd.Process.Kill() // it may have ended before
		<-p.ended
	}
}

// A port is a reserved port of 127.0.0.1: a socket is bound to it, and does not listen. Other
// sockets of this user may bind it too (SO_REUSEPORT, which kube-apiserver sets with
// --permit-port-sharing).
type port struct {
	fd, number int
}

func reservePort() (*port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserving a port: %w", err)
	}
	p := &port{fd: fd}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	var name unix.Sockaddr
	if err == nil {
		name, err = unix.Getsockname(fd)
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("reserving a port: %w", err)
	}
	p.number = name.(*unix.SockaddrInet4).Port
	return p, nil
}

func (p *port) close() { _ = unix.Close(p.fd) }
