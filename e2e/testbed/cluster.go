package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// Hosts outside the cluster. Client is on the nodes' LAN, Far is behind the
// routers.
const (
	Client  = "client"
	Far     = "far"
	Router1 = "r1"
	Router2 = "r2"
	// LAN is the link of every host on the nodes' LAN. Fabric is the nodes' other link, towards
	// the first link of the routers.
	LAN    = "eth0"
	Fabric = "eth1"
)

// Cluster is a running Kubernetes with the hosts around it.
type Cluster interface {
	// Kubeconfig returns the path of the administrator's kubeconfig.
	Kubeconfig() string
	// Nodes returns the names of the nodes, which are hosts too.
	Nodes() []string
	// Tool returns the path of kubectl or helm.
	Tool(name string) string
	// Command returns a command that runs on a host, where the repository
	// has the same path.
	Command(ctx context.Context, host string, argv ...string) *exec.Cmd
	// LoadImage loads an image on all nodes.
	LoadImage(ctx context.Context, tar string) error
	// PowerOff cuts a host's power: its processes cannot announce their end.
	PowerOff(ctx context.Context, host string) error
	// PowerOn starts a host again.
	PowerOn(ctx context.Context, host string) error
	// Freeze stops all processes of a host, Thaw continues them; the kernel runs throughout.
	Freeze(ctx context.Context, host string) error
	Thaw(ctx context.Context, host string) error
	// SetLink cuts or repairs the cable of a host's link.
	SetLink(ctx context.Context, host, link string, up bool) error
	// Partition drops all frames between hosts of different groups.
	Partition(ctx context.Context, groups ...[]string) error
	// Block drops packets between a host and others to and from UDP and TCP ports.
	Block(ctx context.Context, host string, ports ...uint16) error
	// Cut drops all frames from some hosts to others, but none in the reverse direction. With a link
	// it drops only the frames that leave by that link.
	Cut(ctx context.Context, link string, from, to []string) error
	// Loss drops frames of a host at random.
	Loss(ctx context.Context, host string, loss wire.Loss) error
	// Lacks returns what the cluster cannot do.
	Lacks() []wire.Lack
	// Heal ends partitions, cuts, losses and blocks, and repairs cables.
	Heal(ctx context.Context) error
}

// Bed is a cluster to work in.
type Bed struct {
	Cluster Cluster
	Kube    kubernetes.Interface
	dynamic dynamic.Interface
	mapper  meta.ResettableRESTMapper
	root    string // of the repository
	macs    map[string]string
	// Values are arguments for helm with which Install always installs.
	Values []string
	// artifacts is the directory with the image and the chart.
	artifacts string
}

// New connects to a cluster.
func New(cluster Cluster) (*Bed, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	config, err := connection(cluster)
	if err != nil {
		return nil, err
	}
	b := &Bed{Cluster: cluster, root: root, macs: map[string]string{}, artifacts: filepath.Join(root, "dist")}
	if b.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	if b.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	b.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))
	return b, nil
}

// connection returns the administrator's client configuration.
func connection(cluster Cluster) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit
	// The cluster is never behind the machine's proxy.
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	return config, nil
}

// As returns a client with the rights of another user.
func (b *Bed) As(user string) (kubernetes.Interface, error) {
	config, err := connection(b.Cluster)
	if err != nil {
		return nil, err
	}
	config.Impersonate.UserName = user
	return kubernetes.NewForConfig(config)
}

// AsSpeaker returns a client with the rights of a node's speaker.
func (b *Bed) AsSpeaker(node string) (kubernetes.Interface, error) {
	config, err := connection(b.Cluster)
	if err != nil {
		return nil, err
	}
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + Namespace + ":" + Speaker,
		// As in the token of a pod that is bound to a node.
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node}},
	}
	return kubernetes.NewForConfig(config)
}

// Path returns the path of a file of the repository.
func (b *Bed) Path(parts ...string) string {
	return filepath.Join(append([]string{b.root}, parts...)...)
}

// findRoot finds the repository above the working directory.
func findRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "charts", "holdfast", "Chart.yaml")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find the repository: the working directory is not inside it")
		}
	}
}
