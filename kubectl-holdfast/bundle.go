package main

import (
	"bufio"
	"bytes"
	"cmp"
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
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

const (
	// debugPort is where a daemon serves /debug/state, on its loopback address only.
	debugPort = "9219"
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
				if err := s.daemons(cmd.Context(), &b); err != nil {
					return err
				}
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
func readBundle(name string) (explain.Snapshot, error) {
	var b bundle
	f, err := os.Open(name)
	if err != nil {
		return b.Snapshot, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(r).Decode(&b)
	}
	if err != nil {
		return b.Snapshot, fmt.Errorf("read the bundle %s: %w", name, err)
	}
	return b.Snapshot, nil
}

// daemons adds the page of each daemon. What cannot be read is left out.
func (s *seat) daemons(ctx context.Context, b *bundle) error {
	config, err := s.cluster.ToRESTConfig()
	if err != nil {
		return err
	}
	r, err := newReader(config, s.namespace)
	if err != nil {
		return err
	}
	var pods []*corev1.Pod
	if err := list(r, "/api/v1", explain.Pods, s.namespace, parts, &pods)(ctx); err != nil {
		return err
	}
	for _, p := range pods {
		page, err := debugPage(ctx, config, r.client, p)
		if err != nil {
			b.LeftOut = append(b.LeftOut, "the page of pod "+p.Name+": "+err.Error())
			continue
		}
		b.Daemons[p.Name] = page
	}
	return nil
}

// debugPage reads /debug/state of a pod by a port-forward: so no daemon has a port open for it.
func debugPage(ctx context.Context, config *rest.Config, client rest.Interface, pod *corev1.Pod) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, debugTime)
	defer cancel()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	address := client.Post().AbsPath("/api/v1/namespaces", pod.Namespace, "pods", pod.Name, "portforward").URL()
	dial, err := http.NewRequestWithContext(ctx, http.MethodPost, address.String(), nil)
	if err != nil {
		return nil, err
	}
	forward, _, err := spdy.Negotiate(upgrader, &http.Client{Transport: transport}, dial, portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	defer forward.Close()
	defer context.AfterFunc(ctx, func() { forward.Close() })()
	var streams [2]httpstream.Stream
	for i, kind := range []string{corev1.StreamTypeError, corev1.StreamTypeData} {
		headers := http.Header{}
		headers.Set(corev1.StreamType, kind)
		headers.Set(corev1.PortHeader, debugPort)
		headers.Set(corev1.PortForwardRequestIDHeader, "0")
		if streams[i], err = forward.CreateStream(headers); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/debug/state", nil)
	if err == nil {
		err = request.Write(streams[1])
	}
	if err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(streams[1]), request)
	if err != nil {
		why, _ := io.ReadAll(streams[0]) // the node says there why it cannot connect
		return nil, fmt.Errorf("%w %s", cmp.Or(ctx.Err(), err), why)
	}
	page, err := io.ReadAll(io.LimitReader(answer.Body, maxDebug))
	if err == nil && (answer.StatusCode != http.StatusOK || !json.Valid(page)) {
		err = fmt.Errorf("it answers %s", answer.Status)
	}
	return bytes.TrimSpace(page), err
}
