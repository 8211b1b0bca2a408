package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

const (
	// debugPort is where a daemon serves its debug pages, on its loopback address only.
	debugPort = "9219"
	// debugTime bounds the wait for one page, and maxDebug its size in bytes. maxAtOnce pages are read at a time.
	debugTime = 5 * time.Second
	maxDebug  = 64 << 20
	maxAtOnce = 16
)

// ask adds what speakers say of a Service and, if the user wants that, what they find on the wire.
func (s *seat) ask(ctx context.Context, snapshot *explain.Snapshot, key lb.Key) error {
	r, err := s.reader()
	if err != nil {
		return err
	}
	if r.pages(ctx, snapshot.Asked(key), snapshot); !s.probe {
		return nil
	}
	step := explain.Step{Name: "wire", Verdict: explain.Unseen, Text: "no speaker that does not announce it can be asked"}
	for _, pod := range snapshot.Others(key) {
		answer, err := r.page(ctx, pod, http.MethodPost, "/debug/probe?service="+key.String())
		if err == nil && json.Unmarshal(answer, &step) == nil {
			break
		}
		step.Text = fmt.Sprintf("pod %s: %v", pod.Name, err)
	}
	snapshot.Probed = []explain.Step{step}
	return nil
}

// pages adds the state of each of these daemons, or why it was not read. It waits for no dead node, as the API server does.
func (r *reader) pages(ctx context.Context, pods []*corev1.Pod, s *explain.Snapshot) {
	s.Daemons, s.Silent = map[string]json.RawMessage{}, map[string]string{}
	for some := range slices.Chunk(pods, maxAtOnce) {
		read, late := make(chan func(), len(some)), time.After(r.patience)
		for _, p := range some {
			s.Silent[p.Name] = fmt.Sprintf("no answer within %v", r.patience)
			go func() {
				page, err := r.page(ctx, p, http.MethodGet, "/debug/state")
				read <- func() {
					if s.Silent[p.Name] = fmt.Sprint(err); err == nil {
						s.Daemons[p.Name] = page
						delete(s.Silent, p.Name)
					}
				}
			}()
		}
		for left := len(some); left > 0; left-- {
			select {
			case note := <-read:
				note()
			case <-late:
				left = 0
			}
		}
	}
}

// page reads a debug page by a port-forward: so no daemon, and not the user's machine either, has a port open for it.
func (r *reader) page(ctx context.Context, pod *corev1.Pod, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	transport, upgrader, err := spdy.RoundTripperFor(r.config)
	if err != nil {
		return nil, err
	}
	address := r.client.Post().AbsPath("/api/v1/namespaces", pod.Namespace, "pods", pod.Name, "portforward").URL()
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
	var streams [2]io.ReadWriter // of faults, and of data
	for i, kind := range []string{corev1.StreamTypeError, corev1.StreamTypeData} {
		headers := http.Header{}
		headers.Set(corev1.StreamType, kind)
		headers.Set(corev1.PortHeader, debugPort)
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
		err = fmt.Errorf("it answers %s: %s", answer.Status, lb.Line(string(page), 200))
	}
	return page, err
}
