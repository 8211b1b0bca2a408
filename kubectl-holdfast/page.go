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
	// pageTimeout bounds the wait for one page.
	pageTimeout = 5 * time.Second
	// maxPage bounds the size of a page, in bytes.
	maxPage = 64 << 20
	// maxAtOnce bounds the number of pages that are read at a time.
	maxAtOnce = 16
)

// readSpeakers adds the pages of speakers to an explanation. With probe it also adds what a speaker finds on the
// network.
func (r *reader) readSpeakers(ctx context.Context, e *serviceExplanation, probe bool) {
	r.readPages(ctx, e.podsToAsk(), e.Snapshot)
	if !probe {
		return
	}

	step := Step{
		Name:    "wire",
		Verdict: Unseen,
		Text:    "no speaker that does not announce it can be asked",
	}

	for _, pod := range e.podsToProbe() {
		answer, err := r.readPage(ctx, pod, http.MethodPost, "/debug/probe?service="+e.key.String())
		if err == nil && json.Unmarshal(answer, &step) == nil {
			break
		}

		step.Text = fmt.Sprintf("pod %s: %v", pod.Name, err)
	}

	e.Probed = []Step{step}
}

// readPages adds the state of each of these daemons, or why it could not be read.
func (r *reader) readPages(ctx context.Context, pods []*corev1.Pod, s *Snapshot) {
	s.Daemons = map[string]json.RawMessage{}
	s.Silent = map[string]string{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxAtOnce)
	for _, p := range pods {
		group.Go(func() error {
			page, err := r.readPage(ctx, p, http.MethodGet, "/debug/state")
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				s.Silent[p.Name] = err.Error()
				return nil
			}

			s.Daemons[p.Name] = page
			return nil
		})
	}

	_ = group.Wait()
}

// readPage reads a debug page of a daemon. Unlike the API server, it does not wait for a dead node.
func (r *reader) readPage(ctx context.Context, pod *corev1.Pod, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("no answer within %v", r.timeout))
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

// debugPort returns the port of a daemon's debug pages, which it serves on its loopback address only.
func debugPort(pod *corev1.Pod) string {
	_, port, err := net.SplitHostPort(arguments(pod.Spec)["debug-listen"])
	if err != nil {
		return "9219"
	}
	return port
}

// forward reads a page by a port-forward. So neither a daemon nor the user's machine has an open port for it.
func (r *reader) forward(ctx context.Context, pod *corev1.Pod, method, path string) ([]byte, error) {
	transport, upgrader, err := spdy.RoundTripperFor(r.config)
	if err != nil {
		return nil, err
	}

	client := &http.Client{Transport: transport}
	url := r.client.Post().AbsPath("/api/v1/namespaces", pod.Namespace, "pods", pod.Name, "portforward").URL()
	dialer := spdy.NewDialer(upgrader, client, http.MethodPost, url)
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	faults, err := conn.CreateStream(streamHeaders(pod, corev1.StreamTypeError))
	if err != nil {
		return nil, err
	}

	data, err := conn.CreateStream(streamHeaders(pod, corev1.StreamTypeData))
	if err != nil {
		return nil, err
	}

	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, nil)
	if err != nil {
		return nil, err
	}

	err = request.Write(data)
	if err != nil {
		return nil, err
	}

	response, err := http.ReadResponse(bufio.NewReader(data), request)
	if err != nil {
		why, _ := io.ReadAll(faults) // the node reports there why it cannot connect
		return nil, fmt.Errorf("%w %s", cmp.Or(ctx.Err(), err), why)
	}

	return readJSON(response)
}

// streamHeaders returns the headers that open the stream of data, or of faults, of a port-forward.
func streamHeaders(pod *corev1.Pod, kind string) http.Header {
	headers := http.Header{}
	headers.Set(corev1.StreamType, kind)
	headers.Set(corev1.PortHeader, debugPort(pod))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	return headers
}

// readJSON returns the body of a response, which must be JSON.
func readJSON(response *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
	page := bytes.TrimSpace(body)
	if err != nil {
		return page, err
	}

	if response.StatusCode != http.StatusOK || !json.Valid(page) {
		beginning := bytes.ToValidUTF8(page[:min(len(page), 200)], nil)
		return page, fmt.Errorf("it answers %s: %s", response.Status, beginning)
	}

	return page, nil
}
