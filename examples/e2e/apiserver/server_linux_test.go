// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// adminToken is the token of a user with all permissions.
const adminToken = "admin-token"

// users are the server's other users. The name of each is its token, too. Tests grant their
// permissions.
var users = []string{"minimal", "no-list-pods", "no-get-nodes", "nobody"}

// kubeletToken is the token of the kubelet of kubeletNode.
const (
	kubeletToken = "kubelet-token"
	kubeletNode  = "kubelets-node"
)

// A server is a kube-apiserver with an etcd. It can be killed and restarted with its data.
type server struct {
	dir               string
	etcdPath, apiPath string
	port              *port
	etcd, api         *process
}

// newServer builds the programs, and writes their files into an empty directory.
func newServer(dir string) (*server, error) {
	s := &server{dir: dir}
	var err error
	if s.etcdPath, err = build("go.etcd.io/etcd/server/v3"); err != nil {
		return s, err
	}
	if s.apiPath, err = build("k8s.io/kubernetes/cmd/kube-apiserver"); err != nil {
		return s, err
	}
	if s.port, err = reservePort(); err != nil {
		return s, err
	}
	return s, s.writeSecrets()
}

// writeSecrets writes the tokens of the users, and the key with which the server
// signs the tokens of service accounts.
func (s *server) writeSecrets() error {
	var tokens strings.Builder
	fmt.Fprintf(&tokens, "%s,admin,admin,system:masters\n", adminToken)
	fmt.Fprintf(&tokens, "%s,system:node:%s,kubelet,system:nodes\n", kubeletToken, kubeletNode)
	for _, user := range users {
		fmt.Fprintf(&tokens, "%s,%s,%s\n", user, user, user)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "tokens.csv"), []byte(tokens.String()), 0o600); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return os.WriteFile(filepath.Join(s.dir, "sa.key"), text, 0o600)
}

// start starts etcd, unless it runs, and the API server, and returns when this is ready.
func (s *server) start() error {
	var err error
	if s.etcd == nil {
		s.etcd, err = startProcess(s.dir, "etcd", s.etcdPath,
			"--name=servertest", "--data-dir=etcd",
			"--listen-client-urls=unix://client.sock:1", "--advertise-client-urls=unix://client.sock:1",
			"--listen-peer-urls=unix://peer.sock:1", "--initial-advertise-peer-urls=unix://peer.sock:1",
			"--initial-cluster=servertest=unix://peer.sock:1",
			// A single member: elections need not wait for others. Writes need not
			// wait for the disk, which may be slow.
			"--heartbeat-interval=10", "--election-timeout=100", "--unsafe-no-fsync",
			"--log-level=warn")
		if err != nil {
			return err
		}
	}
	s.api, err = startProcess(s.dir, "kube-apiserver", s.apiPath,
		"--etcd-servers=unix://client.sock:1",
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port.number),
		"--permit-port-sharing", "--endpoint-reconciler-type=none",
		"--cert-dir=certs", "--token-auth-file=tokens.csv", "--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=sa.key", "--service-account-signing-key-file=sa.key",
		"--service-cluster-ip-range=10.0.0.0/24",
		// No controller creates the service account "default" of each namespace.
		"--disable-admission-plugins=ServiceAccount", "--allow-privileged")
	if err != nil {
		return err
	}
	return s.ready()
}

// ready returns when /readyz succeeds, which includes that the default roles exist.
func (s *server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var err error
	for {
		select {
		case <-s.api.ended:
			return fmt.Errorf("kube-apiserver ended: %w", s.api.err)
		case <-s.etcd.ended:
			return fmt.Errorf("etcd ended: %w", s.etcd.err)
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready: %w", err)
		case <-tick.C:
		}
		var client *kubernetes.Clientset
		if client, err = kubernetes.NewForConfig(s.config(adminToken)); err != nil {
			continue // it has not written its certificate yet
		}
		if _, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err == nil {
			return nil
		}
	}
}

// crash kills the API server. Its data stays in etcd.
func (s *server) crash() {
	s.api.kill()
}

func (s *server) close() {
	s.api.kill()
	s.etcd.kill()
	if s.port != nil {
		s.port.close()
	}
}

// config returns the configuration of a client with that token.
func (s *server) config(token string) *rest.Config {
	return &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", s.port.number),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(s.dir, "certs", "apiserver.crt")},
		QPS:             -1,
		// Ignore proxies of the environment.
		Proxy: http.ProxyURL(nil),
	}
}

// logs returns the last lines of the processes' output.
func (s *server) logs() string {
	var out strings.Builder
	for _, name := range []string{"etcd", "kube-apiserver"} {
		text, err := os.ReadFile(filepath.Join(s.dir, name+".log"))
		if err != nil {
			continue // it was not started
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&out, "--- the end of %s.log:\n%s\n", name, strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
	return out.String()
}
