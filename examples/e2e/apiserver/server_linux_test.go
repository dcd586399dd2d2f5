// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hostlocal-gc/hostlocal-gc/gc/gctest"
	"github.com/hostlocal-gc/hostlocal-gc/gc/plugintest"
	"github.com/hostlocal-gc/hostlocal-gc/podsource/kube"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// cluster is the API server of all tests, since one takes seconds to start. Each test has its
// own node and namespace.
var cluster server

func TestMain(m *testing.M) {
	cluster.prepare()
	cluster.start()
	gctest.Uptime(nil, 30*24*time.Hour) // the machine may be younger than the reservations
	status := plugintest.Main(m)
	if status != 0 {
		cluster.logs()
	}
	kill(cluster.api)
	kill(cluster.etcd)
	_ = os.RemoveAll(cluster.dir) // files left in the temporary directory are no failure
	os.Exit(status)
}

// must returns s. An error ends the process.
func must[S any](s S, err error) S {
	check(err)
	return s
}

func check(err error) {
	if err != nil {
		cluster.logs()
		panic(err)
	}
}

// A server is a kube-apiserver with an etcd. The API server can be killed and started again with
// its data.
type server struct {
	dir, ip, apiPath string
	etcd, api        *exec.Cmd // nil if it is not running
}

// prepare builds both programs, and starts etcd.
func (s *server) prepare() {
	fmt.Fprintln(os.Stderr, "apiserver: building etcd and kube-apiserver, which takes minutes the first time")
	etcd := goCommand("off", "tool", "-n", "go.etcd.io/etcd/server/v3")
	s.apiPath = goCommand("off", "tool", "-n", "k8s.io/kubernetes/cmd/kube-apiserver")
	// A loopback address for each test process, on which its port stays free for a restart.
	pid := os.Getpid()
	s.ip = fmt.Sprintf("127.%d.%d.%d", 64+pid>>16, pid>>8&255, pid&255)
	s.dir = must(os.MkdirTemp("", "apiserver-"))
	check(os.WriteFile(filepath.Join(s.dir, "tokens.csv"), []byte("admin-token,admin,admin,system:masters\n"), 0o600))
	s.etcd = run(s.dir, "etcd", nil, etcd, "--name=apiserver", "--data-dir=etcd",
		"--listen-client-urls=unix://client.sock:1", "--advertise-client-urls=unix://client.sock:1",
		"--listen-peer-urls=unix://peer.sock:1", "--initial-advertise-peer-urls=unix://peer.sock:1",
		"--initial-cluster=apiserver=unix://peer.sock:1",
		// A single member: elections need not wait for others. Writes need not wait for the disk.
		"--heartbeat-interval=10", "--election-timeout=100", "--unsafe-no-fsync", "--log-level=warn")
}

// start starts the API server if it is not running. When it is ready, its default roles exist.
func (s *server) start() {
	if s.api != nil {
		return
	}
	s.launch()
	ready := func(ctx context.Context) (bool, error) {
		client, err := kubernetes.NewForConfig(s.config())
		if err != nil {
			return false, nil // it has not written its certificate yet
		}
		_, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, nil
	}
	check(wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, patience, true, ready))
}

// launch runs the API server.
func (s *server) launch() {
	s.api = run(s.dir, "kube-apiserver", nil, s.apiPath, "--etcd-servers=unix://client.sock:1",
		"--bind-address="+s.ip, "--advertise-address="+s.ip, "--secure-port=26443", "--endpoint-reconciler-type=none",
		"--cert-dir=certs", "--token-auth-file=tokens.csv", "--authorization-mode=Node,RBAC",
		// The key of its own certificate, which it makes, also signs the tokens of service accounts.
		"--service-account-key-file=certs/apiserver.key", "--service-account-signing-key-file=certs/apiserver.key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
		// No controller creates the service account "default" of each namespace.
		"--disable-admission-plugins=ServiceAccount", "--allow-privileged")
}

// crash kills the API server. Its data stays in etcd.
func (s *server) crash() {
	kill(s.api)
	s.api = nil
}

// config returns the configuration of a client with all permissions, and without the proxies of
// the environment.
func (s *server) config() *rest.Config {
	return &rest.Config{
		Host: "https://" + s.ip + ":26443", BearerToken: "admin-token", QPS: -1, Proxy: http.ProxyURL(nil),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(s.dir, "certs", "apiserver.crt")},
	}
}

// as returns a client that acts as a user.
func (s *server) as(user string, groups ...string) kube.Client {
	config := s.config()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return kubernetes.NewForConfigOrDie(config).CoreV1()
}

// logs prints the last lines of both programs.
func (s *server) logs() {
	tail := exec.Command("tail", "-n", "30", "etcd.log", "kube-apiserver.log")
	tail.Dir, tail.Stdout, tail.Stderr = s.dir, os.Stderr, os.Stderr
	_ = tail.Run() // the logs may not exist yet
}

// goCommand runs the go command without GOFLAGS, which may ask for the race detector.
func goCommand(work string, args ...string) string {
	cmd := exec.Command("go", args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "GOWORK="+work, "CGO_ENABLED=0", "GOFLAGS="), os.Stderr
	return strings.TrimSpace(string(must(cmd.Output())))
}

// run starts a program in dir, and appends its output to name.log there. It is killed when this
// process ends: no test ends a thread, on which Pdeathsig depends. Its environment is not that of
// the test, which may have ETCD_... variables and proxies.
func run(dir, name string, env []string, path string, args ...string) *exec.Cmd {
	log := must(os.OpenFile(filepath.Join(dir, name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600))
	defer func() { _ = log.Close() }() // the child has its own descriptor
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "HOME="+dir, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	check(cmd.Start())
	return cmd
}

// kill kills a program, and returns when it has ended.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended before
	_ = cmd.Wait()
}
