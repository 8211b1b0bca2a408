package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

const (
	// debugPort is where a daemon serves /debug/state, on its loopback address only.
	debugPort = 9219
	// debugTime bounds the wait for one page, and maxDebug its size in bytes.
	debugTime = 10 * time.Second
	maxDebug  = 64 << 20
)

// bundle is what a file for a bug report holds.
type bundle struct {
	// LeftOut says what is not in it, in sentences.
	LeftOut []string
	explain.Snapshot
	// Daemons are the pages /debug/state, by pod.
	Daemons map[string]json.RawMessage
}

// hide removes what a report must not have. Snapshots share objects with nothing.
func (b *bundle) hide() {
	b.LeftOut = append(b.LeftOut, "Secrets are not read; passwords in BGPPeers are replaced; labels, annotations and fields of Services and Nodes are as they are")
	for _, p := range b.Objects.Peers {
		if p.Spec.Password != "" {
			p.Spec.Password = "unread"
		}
		delete(p.Annotations, corev1.LastAppliedConfigAnnotation) // it repeats the password
	}
	for _, resource := range slices.Sorted(maps.Keys(b.Unread)) {
		b.LeftOut = append(b.LeftOut, resource+": "+b.Unread[resource])
	}
}

func (s *seat) bundle() *cobra.Command {
	return &cobra.Command{
		Use: "bundle FILE", Short: "Write what a bug report needs into a file, without passwords", Args: cobra.ExactArgs(1),
		Long: "The file is compressed JSON. With --from FILE all other commands read it in place of the cluster.",
		RunE: func(cmd *cobra.Command, args []string) error {
			snapshot, err := s.read(cmd.Context(), "")
			if err != nil {
				return err
			}
			b := bundle{Snapshot: snapshot, Daemons: map[string]json.RawMessage{}}
			if s.from == "" {
				err = s.daemons(cmd.Context(), &b)
			}
			if err != nil {
				return err
			}
			b.hide()
			if err := b.write(args[0]); err != nil {
				return err
			}
			for _, text := range b.LeftOut {
				fmt.Fprintln(cmd.OutOrStdout(), "left out:", text)
			}
			return nil
		},
	}
}

func (b *bundle) write(name string) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := gzip.NewWriter(f)
	err = json.NewEncoder(w).Encode(b)
	return errors.Join(err, w.Close(), f.Close())
}

// readBundle reads the snapshot of a bundle.
func readBundle(name string) (out explain.Snapshot, err error) {
	f, err := os.Open(name)
	if err != nil {
		return out, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err == nil {
		var b bundle
		err = json.NewDecoder(r).Decode(&b)
		out = b.Snapshot
	}
	if err != nil {
		return out, fmt.Errorf("read the bundle %s: %w", name, err)
	}
	return out, nil
}

// daemons adds the page of each daemon. What cannot be read is left out.
func (s *seat) daemons(ctx context.Context, b *bundle) error {
	config, err := s.cluster.ToRESTConfig()
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	pods, err := kube.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: parts})
	if err != nil {
		b.LeftOut = append(b.LeftOut, "the daemons' pages: "+err.Error())
		return nil
	}
	for _, p := range pods.Items {
		page, err := debugPage(ctx, config, kube, p)
		if err != nil {
			b.LeftOut = append(b.LeftOut, "the page of pod "+p.Name+": "+err.Error())
			continue
		}
		b.Daemons[p.Name] = page
	}
	return nil
}

// debugPage reads /debug/state of a pod by a port-forward: so no daemon has a port open for it.
func debugPage(ctx context.Context, config *rest.Config, kube kubernetes.Interface, pod corev1.Pod) (json.RawMessage, error) {
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	address := kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	ctx, cancel := context.WithTimeout(ctx, debugTime)
	defer cancel()
	ready, failed := make(chan struct{}), make(chan error, 1)
	forward, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address),
		[]string{fmt.Sprintf("0:%d", debugPort)}, ctx.Done(), ready, io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	go func() { failed <- forward.ForwardPorts() }()
	select {
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-ready:
	}
	ports, err := forward.GetPorts()
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/debug/state", ports[0].Local), nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(io.LimitReader(answer.Body, maxDebug))
	if err == nil && (answer.StatusCode != http.StatusOK || !json.Valid(page)) {
		err = fmt.Errorf("it answers %s", answer.Status)
	}
	return bytes.TrimSpace(page), err
}
