package k8s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Oldest is the oldest supported Kubernetes: CEL's ip() and cidr(), which validate our custom resources, are on by
// default from 1.31.
const Oldest = "1.31.0"

// Clients talk to one API server.
type Clients struct {
	kube kinds
	// paced writes Events, which cost the API server as much as addresses and must not delay them.
	paced rest.Interface
	// holdfast serves the kinds of group holdfast.dev.
	holdfast rest.Interface
	contact  *contactTracker
	clock    *serverClock
}

// Connect returns clients for the cluster that the process runs in, or for the kubeconfig file if a path is given.
// userAgent names the process in the API server's log.
func Connect(kubeconfig, userAgent string) (Clients, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return Clients{}, fmt.Errorf("find the API server: %w", err)
	}

	return ClientsFor(config, userAgent)
}

// ClientsFor returns clients for the API server of config.
func ClientsFor(config *rest.Config, userAgent string) (Clients, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = userAgent
	// The API server's priority and fairness limits the rate. Another limit here would only make thousands of Services
	// wait for each other. Only Events have a limit.
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return fencedTransport{next}
	})
	clock := &serverClock{}
	config.Wrap(clock.wrap)

	if config.Dial == nil { // a caller may have its own dialer
		config.Dial = dial
	}

	contact := newContactTracker()
	config.Dial = contact.wrap(config.Dial)
	// Both clients share its connections.
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return Clients{}, fmt.Errorf("make transport: %w", err)
	}

	core := rest.CopyConfig(config)
	core.ContentType = "application/vnd.kubernetes.protobuf"
	core.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	kube, err := newKinds(core, transport)
	if err != nil {
		return Clients{}, err
	}

	events := rest.CopyConfig(core)
	events.QPS = eventRate
	events.Burst = eventBurst
	eventTransport := &http.Client{Transport: transport.Transport, Timeout: eventTime}
	paced, err := clientOf(corev1.SchemeGroupVersion, events, eventTransport)
	if err != nil {
		return Clients{}, err
	}

	holdfast, err := clientOf(v1beta1.GroupVersion, config, transport)
	return Clients{
		kube:     kube,
		paced:    paced,
		holdfast: holdfast,
		contact:  contact,
		clock:    clock,
	}, err
}

// LogTo sends client-go's messages to log: one stream, one format.
func LogTo(log *slog.Logger) {
	klog.SetSlogLogger(log.With("from", "client-go"))
}

// checkVersion returns an error with instructions if the API server is older than Oldest.
func checkVersion(gitVersion string) error {
	got, err := version.ParseGeneric(gitVersion)
	if err != nil {
		return fmt.Errorf("read the API server's version %q: %w", gitVersion, err)
	}
	if got.LessThan(version.MustParseGeneric(Oldest)) {
		return fmt.Errorf("the API server is %s; the oldest Kubernetes served is %s: upgrade the cluster",
			gitVersion, Oldest)
	}

	return nil
}

// version returns the version of the API server.
func (c Clients) version(ctx context.Context) (string, error) {
	text, err := c.kube.core.Get().
		AbsPath("/version").
		Do(ctx).
		Raw()
	if err != nil {
		return "", err
	}

	var info apiversion.Info
	err = json.Unmarshal(text, &info)
	return info.GitVersion, err
}

// WaitForVersion waits until the API server answers, and returns nil if it is new enough. It logs once that it waits.
// It returns an error if the server is too old or ctx ends.
func (c Clients) WaitForVersion(ctx context.Context, log *slog.Logger) error {
	var tooOld error
	logged := false
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		version, err := c.version(ctx)
		if err != nil {
			if !logged {
				log.Warn("waiting for the API server", "error", err)
				logged = true
			}
			return false, nil
		}

		tooOld = checkVersion(version)
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}

	return tooOld
}

const (
	// dialTime is the time in which an API server must accept a connection.
	dialTime = 2 * time.Second
	// deadTime is the time after which a connection ends whose other machine acknowledges nothing. One address may
	// stand for several API servers: by client-go's defaults a connection to a server that lost its power would last
	// for 45 s. The kernels check this, so that a slow API server keeps its connections.
	deadTime = 4 * time.Second
)

// keepAlive makes the kernel probe the other end of idle connections.
var keepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     deadTime / 2,
	Interval: time.Second,
	Count:    int((deadTime / 2).Seconds()),
}

// dial connects to an API server.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		Timeout:         dialTime,
		KeepAliveConfig: keepAlive,
		Control: func(_, _ string, c syscall.RawConn) error {
			// RFC 5482: the user timeout.
			timeout := int(deadTime.Milliseconds())
			var err error
			controlErr := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, timeout)
			})
			return errors.Join(controlErr, err)
		},
	}
	return d.DialContext(ctx, network, address)
}
