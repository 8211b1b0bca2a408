//go:build !race

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/apitest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"
)

// Ways in which an API server can be away.
const (
	here    = ""
	refuses = "it refuses connections"
	hangs   = "it does not answer"
	fails   = "it answers that it cannot"
)

// apiServer is an API server in memory, for use in a synctest bubble: objects by the path of their list in all
// namespaces and by key, with lists, watches and patches.
type apiServer struct {
	mu      sync.Mutex
	away    string
	version int
	// asked counts requests that are no watches.
	asked   int
	objects map[string]map[string]json.RawMessage
	log     []change
	// changed is closed at the next change of any of these.
	changed chan struct{}
	conns   []net.Conn
	accept  chan net.Conn
	closed  chan struct{}
	close   func()
	// t fails when a patched object of our group is invalid.
	t testing.TB
}

// kinds of the resources that a speaker reads.
var kinds = map[string]string{
	"services": "Service", "secrets": "Secret", "namespaces": "Namespace", "nodes": "Node", "pods": "Pod",
	"daemonsets":     "DaemonSet",
	"endpointslices": "EndpointSlice", "ipaddresspools": "IPAddressPool", "l2advertisements": "L2Advertisement",
	"bgpadvertisements": "BGPAdvertisement", "bgppeers": "BGPPeer", "bfdprofiles": "BFDProfile",
	"communities": "Community", "speakerstates": "SpeakerState",
}

// change is one event of the watches.
type change struct {
	list    string
	version int
	event   json.RawMessage
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{
		objects: map[string]map[string]json.RawMessage{}, changed: make(chan struct{}),
		accept: make(chan net.Conn), closed: make(chan struct{}), t: t,
	}
	s.close = sync.OnceFunc(func() { close(s.closed) })
	server := &http.Server{Handler: s}
	go func() { _ = server.Serve(s) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

func (s *apiServer) config() *rest.Config { return &rest.Config{Host: "http://api", Dial: s.dial} }

// Accept implements net.Listener.
func (s *apiServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.accept:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *apiServer) Close() error {
	s.close()
	return nil
}

// Addr implements net.Listener.
func (s *apiServer) Addr() net.Addr { return &net.IPAddr{} }

func (s *apiServer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := s.wait(ctx, func() bool { return s.away != hangs }); err != nil {
		return nil, err
	}
	client, server := net.Pipe()
	s.mu.Lock()
	away := s.away
	s.conns = append(s.conns, client)
	s.mu.Unlock()
	if away == refuses {
		return nil, syscall.ECONNREFUSED
	}
	select {
	case s.accept <- server:
		return client, nil
	case <-s.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// wait waits until ok, which it calls under the lock, is true or ctx ends.
func (s *apiServer) wait(ctx context.Context, ok func() bool) error {
	for {
		s.mu.Lock()
		done, changed := ok(), s.changed
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// set makes the server go away, or come back.
func (s *apiServer) set(away string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away = away; away != hangs {
		for _, c := range s.conns {
			_ = c.Close()
		}
		s.conns = nil
	}
	s.wake()
}

func (s *apiServer) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// put stores an object below the path of its list; nil deletes it.
func (s *apiServer) put(list, key string, o any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, kind := s.objects[list][key], "DELETED"
	s.version++
	if o != nil {
		var fields map[string]any
		text, err := json.Marshal(o)
		if err == nil {
			err = json.Unmarshal(text, &fields)
		}
		if err != nil {
			panic(err)
		}
		fields["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
		fields["apiVersion"], fields["kind"] = kindOf(list)
		body, _ = json.Marshal(fields)
		kind = "MODIFIED"
		if s.objects[list] == nil {
			s.objects[list] = map[string]json.RawMessage{}
		}
		if s.objects[list][key] == nil {
			kind = "ADDED"
		}
		s.objects[list][key] = body
	} else {
		delete(s.objects[list], key)
	}
	event, _ := json.Marshal(map[string]any{"type": kind, "object": body})
	s.log = append(s.log, change{list, s.version, event})
	s.wake()
}

// get reads an object; it reports false if there is none.
func (s *apiServer) get(list, key string, into any) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, found := s.objects[list][key]
	if found {
		if err := json.Unmarshal(body, into); err != nil {
			panic(err)
		}
	}
	return found
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.wait(r.Context(), func() bool { return s.away != hangs }) != nil {
		return
	}
	s.mu.Lock()
	away := s.away
	if r.FormValue("watch") == "" {
		s.asked++
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	list, key := find(r.URL.Path)
	switch {
	case away == fails:
		s.refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case r.FormValue("watch") != "":
		s.watch(w, r, list)
	case r.Method == http.MethodGet && key == "":
		s.list(w, list)
	case r.Method == http.MethodGet:
		var o json.RawMessage
		if !s.get(list, key, &o) {
			s.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		_, _ = w.Write(o)
	case r.Method == http.MethodPatch:
		s.patch(w, r, list, key)
	case path.Base(list) == "events":
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"event"}}`)
	case r.Method == http.MethodPost:
		s.create(w, r, list)
	default:
		s.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// create stores a new object of a kind without namespaces.
func (s *apiServer) create(w http.ResponseWriter, r *http.Request, list string) {
	var o metav1.PartialObjectMetadata
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		s.refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.put(list, o.Name, o)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(o)
}

// find returns the path of the list in all namespaces that a request is about, and the key of the object; "" for all.
func find(at string) (list, key string) {
	before, after, namespaced := strings.Cut(strings.TrimSuffix(at, "/status"), "/namespaces/")
	if namespaced {
		parts := strings.SplitN(after, "/", 3) // namespace, resource, name
		if len(parts) == 3 {
			key = parts[0] + "/" + parts[2]
		}
		return before + "/" + parts[1], key
	}
	if _, ok := kinds[path.Base(before)]; ok {
		return before, ""
	}
	return path.Dir(before), path.Base(before)
}

// kindOf returns the version and kind of the objects of a list.
func kindOf(list string) (version, kind string) {
	version = strings.TrimPrefix(strings.TrimPrefix(path.Dir(list), "/apis/"), "/api/")
	return version, kinds[path.Base(list)]
}

func (s *apiServer) refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason,
		Code: int32(code),
	})
}

func (s *apiServer) list(w http.ResponseWriter, list string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, kind := kindOf(list)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind + "List", "apiVersion": version, "metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)},
		"items": slices.Collect(maps.Values(s.objects[list])),
	})
}

// watch sends changes, and first the present objects if the request asks for them.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, list string) {
	version, kind := kindOf(list)
	sent, _ := strconv.Atoi(r.FormValue("resourceVersion"))
	var first []json.RawMessage
	at := 0 // of the log
	s.mu.Lock()
	if r.FormValue("sendInitialEvents") == "true" {
		sent = s.version
		for _, o := range s.objects[list] {
			event, _ := json.Marshal(map[string]any{"type": "ADDED", "object": o})
			first = append(first, event)
		}
		first = append(first, fmt.Appendf(nil,
			`{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d","annotations":{%q:"true"}}}}`,
			kind, version, s.version, metav1.InitialEventsAnnotationKey))
	}
	s.mu.Unlock()
	send := func(events []json.RawMessage) {
		for _, e := range events {
			_, _ = w.Write(e)
		}
		w.(http.Flusher).Flush()
	}
	send(first)
	for {
		var fresh []json.RawMessage
		err := s.wait(r.Context(), func() bool {
			for ; at < len(s.log); at++ {
				if c := s.log[at]; c.list == list && c.version > sent {
					fresh, sent = append(fresh, c.event), c.version
				}
			}
			return len(fresh) > 0 && s.away != hangs
		})
		if err != nil {
			return
		}
		send(fresh)
	}
}

func (s *apiServer) patch(w http.ResponseWriter, r *http.Request, list, key string) {
	patch, err := io.ReadAll(r.Body)
	var have json.RawMessage
	switch {
	case err != nil:
	case !s.get(list, key, &have):
		s.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case r.Header.Get("Content-Type") == string(types.StrategicMergePatchType):
		have, err = strategicpatch.StrategicMergePatch(have, patch, corev1.Service{})
	default:
		var into, from map[string]any
		if err = errors.Join(json.Unmarshal(have, &into), json.Unmarshal(patch, &from)); err != nil {
			break
		}
		if into, err = apitest.Patched(s.t, into, from); err != nil {
			s.refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
			return
		}
		have, _ = json.Marshal(into)
	}
	if err != nil {
		s.refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.put(list, key, have)
	s.get(list, key, &have)
	_, _ = w.Write(have)
}
