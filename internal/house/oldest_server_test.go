//go:build oldest

package house

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// adminToken is the token of a member of system:masters. Only this machine can reach the server.
const adminToken = "admin"

// startTime is how long a busy machine may take to start the server.
const startTime = 3 * time.Minute

// startServer starts etcd and the API server, and returns the access of an administrator.
func startServer(t testing.TB) *rest.Config {
	t.Helper()
	dir := t.TempDir()
	client, peer, secure := freePort(t), freePort(t), freePort(t)
	etcd := "http://127.0.0.1:" + client
	runServer(t, dir, "etcd", "--name=one", "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--log-level=warn", "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls=http://127.0.0.1:"+peer, "--initial-advertise-peer-urls=http://127.0.0.1:"+peer,
		"--initial-cluster=one=http://127.0.0.1:"+peer)

	tokens, key := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "sa.key")
	must(t, os.WriteFile(tokens, []byte(adminToken+`,admin,admin,"system:masters"`), 0o600))
	must(t, os.WriteFile(key, newKey(t), 0o600))
	// The API server makes a certificate of its own. No test looks for it in the Service kubernetes.
	runServer(t, dir, "kube-apiserver", "--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--secure-port="+secure,
		"--cert-dir="+dir, "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112", "--token-auth-file="+tokens,
		"--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key, "--profiling=false")

	config := &rest.Config{
		Host: "https://127.0.0.1:" + secure, BearerToken: adminToken, QPS: -1, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "apiserver.crt")},
	}
	waitReady(t, dir, config)
	return config
}

// runServer runs one of the compiled programs until the test, or the test process, ends. Its log is in dir.
func runServer(t testing.TB, dir, name string, args ...string) {
	t.Helper()
	program := filepath.Join("../../bin/oldest", name)
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run make test-oldest", err)
	}
	log, err := os.Create(filepath.Join(dir, name+".log"))
	must(t, err)
	defer log.Close()
	// The shell reads the end of its input when the test process is gone, in whatever way.
	cmd := exec.Command("sh", append([]string{"-c", `"$0" "$@" & read _; kill -9 $!`, program}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	input, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = input.Close()
		_ = cmd.Wait()
	})
}

func waitReady(t testing.TB, dir string, config *rest.Config) {
	t.Helper()
	var failure error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, startTime, true,
		func(ctx context.Context) (bool, error) {
			var kube *kubernetes.Clientset
			// The client reads the certificate, which the API server has yet to make.
			if kube, failure = kubernetes.NewForConfig(config); failure == nil {
				_, failure = kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
			}
			return failure == nil, nil
		})
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "kube-apiserver.log"))
		t.Fatalf("%v: %v\n%s", err, failure, log[max(0, len(log)-4000):])
	}
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// newKey returns a key that signs the tokens of service accounts.
func newKey(t testing.TB) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}
