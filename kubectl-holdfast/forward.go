package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

const (
	// debugTime bounds the wait for one page, and maxDebug its size in bytes. maxAtOnce pages are read at a time.
	debugTime = 5 * time.Second
	maxDebug  = 64 << 20
	maxAtOnce = 16
)

// ask adds what speakers say of a Service and, if the user wants that, what they find on the wire.
func (r *reader) ask(ctx context.Context, w *why, probe bool) {
	if r.pages(ctx, w.asked(), w.Snapshot); !probe {
		return
	}
	step := Step{Name: "wire", Verdict: Unseen, Text: "no speaker that does not announce it can be asked"}
	for _, pod := range w.others() {
		answer, err := r.page(ctx, pod, http.MethodPost, "/debug/probe?service="+w.key.String())
		if err == nil && json.Unmarshal(answer, &step) == nil {
			break
		}
		step.Text = fmt.Sprintf("pod %s: %v", pod.Name, err)
	}
	w.Probed = []Step{step}
}

// pages adds the state of each of these daemons, or why it was not read.
func (r *reader) pages(ctx context.Context, pods []*corev1.Pod, s *Snapshot) {
	s.Daemons, s.Silent = map[string]json.RawMessage{}, map[string]string{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxAtOnce)
	for _, p := range pods {
		group.Go(func() error {
			page, err := r.page(ctx, p, http.MethodGet, "/debug/state")
			mu.Lock()
			defer mu.Unlock()
			if s.Daemons[p.Name] = page; err != nil {
				delete(s.Daemons, p.Name)
				s.Silent[p.Name] = err.Error()
			}
			return nil
		})
	}
	_ = group.Wait()
}

// page asks a daemon for a debug page. It waits for no dead node, as the API server does.
func (r *reader) page(ctx context.Context, pod *corev1.Pod, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.patience, fmt.Errorf("no answer within %v", r.patience))
	defer cancel()
	done := make(chan func() ([]byte, error), 1)
	go func() {
		page, err := r.forward(ctx, pod, method, path)
		done <- func() ([]byte, error) { return page, err }
	}()
	select {
	case answer := <-done:
		return answer()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// debugPort is where a daemon serves its debug pages, on its loopback address only.
func debugPort(pod *corev1.Pod) string {
	if _, port, err := net.SplitHostPort(arguments(pod.Spec)["debug-listen"]); err == nil {
		return port
	}
	return "9219"
}

// forward reads a page by a port-forward: so no daemon, and not the user's machine either, has a port open for it.
func (r *reader) forward(ctx context.Context, pod *corev1.Pod, method, path string) ([]byte, error) {
	transport, upgrader, err := spdy.RoundTripperFor(r.config)
	if err != nil {
		return nil, err
	}
	address := r.client.Post().AbsPath("/api/v1/namespaces", pod.Namespace, "pods", pod.Name, "portforward").URL()
	forward, _, err := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address).Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	defer forward.Close()
	defer context.AfterFunc(ctx, func() { forward.Close() })()
	var streams [2]io.ReadWriter // of faults, and of data
	for i, kind := range []string{corev1.StreamTypeError, corev1.StreamTypeData} {
		headers := http.Header{}
		headers.Set(corev1.StreamType, kind)
		headers.Set(corev1.PortHeader, debugPort(pod))
		headers.Set(corev1.PortForwardRequestIDHeader, "0")
		if streams[i], err = forward.CreateStream(headers); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, nil)
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
	page = bytes.TrimSpace(page)
	if err == nil && (answer.StatusCode != http.StatusOK || !json.Valid(page)) {
		err = fmt.Errorf("it answers %s: %s", answer.Status, bytes.ToValidUTF8(page[:min(len(page), 200)], nil))
	}
	return page, err
}
