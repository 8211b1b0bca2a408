package lab

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// readyWait is the deadline of a cluster, and of its parts, on a busy machine.
const readyWait = 2 * time.Minute

// api is a client for the few requests that make a cluster out of daemons.
type api struct {
	server string
	client *http.Client
}

func newAPI(keys *pki) (*api, error) {
	certificate, key, err := keys.cluster.issue(identity{commonName: "admin", organization: []string{"system:masters"}})
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(keys.cluster.cert)
	return &api{server: keys.server, client: &http.Client{
		Timeout: 5 * time.Second,
		// No Proxy: the lab is never behind one.
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}},
	}}, nil
}

func (a *api) do(ctx context.Context, method, path, contentType, body string, accept ...int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.server+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(append(accept, http.StatusOK), resp.StatusCode) {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	return b, nil
}

// waitServer waits until the API server is ready. Its check includes the
// bootstrap RBAC, without which the controller-manager cannot start.
func (a *api) waitServer(ctx context.Context) error {
	return waitFor(ctx, readyWait, func() error {
		_, err := a.do(ctx, http.MethodGet, "/readyz", "", "")
		return err
	})
}

// nodeProxier is the one binding that the API server does not bring along.
const nodeProxier = `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
"metadata": {"name": "lab:node-proxier"},
"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-proxy"}]}`

// controlPlaneLabels are kubeadm's. A kubelet may not set them itself.
const controlPlaneLabels = `{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": "",
"node.kubernetes.io/exclude-from-external-load-balancers": ""}}}`

func (a *api) bindProxies(ctx context.Context) error {
	_, err := a.do(ctx, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"application/json", nodeProxier, http.StatusCreated, http.StatusConflict)
	return err
}

func (a *api) labelControlPlane(ctx context.Context, name string) error {
	_, err := a.do(ctx, http.MethodPatch, "/api/v1/nodes/"+name, "application/merge-patch+json", controlPlaneLabels)
	return err
}

// nodeList is what waiting needs of a list of nodes.
type nodeList struct {
	Items []struct {
		Metadata struct{ Name string }
		Status   struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
}

// notReady returns the names of those nodes that are not Ready in the list.
func (n nodeList) notReady(want []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(name string) bool {
		for _, item := range n.Items {
			for _, c := range item.Status.Conditions {
				if item.Metadata.Name == name && c.Type == "Ready" && c.Status == "True" {
					return true
				}
			}
		}
		return false
	})
}

// waitNodes waits until all nodes are Ready.
func (a *api) waitNodes(ctx context.Context, want []string) error {
	return waitFor(ctx, readyWait, func() error {
		b, err := a.do(ctx, http.MethodGet, "/api/v1/nodes", "", "")
		if err != nil {
			return err
		}
		var list nodeList
		if err := json.Unmarshal(b, &list); err != nil {
			return err
		}
		if missing := list.notReady(want); len(missing) > 0 {
			return fmt.Errorf("wait for nodes %s: not Ready", strings.Join(missing, ", "))
		}
		return nil
	})
}
