package main

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

const (
	poolsPath    = "/apis/holdfast.dev/v1beta1/ipaddresspools"
	memoriesPath = "/apis/holdfast.dev/v1beta1/poolmemories"
	servicesPath = "/api/v1/namespaces/default/services"
	// allocationsPath has the EgressAllocations.
	allocationsPath = "/apis/holdfast.dev/v1beta1/egressallocations"
	// own is the namespace of Holdfast.
	own         = "holdfast-system"
	secretsPath = "/api/v1/namespaces/" + own + "/secrets"
)

var kinds = map[string]string{
	"services": "Service", "secrets": "Secret", "namespaces": "Namespace", "nodes": "Node", "pods": "Pod",
	"daemonsets": "DaemonSet", "ipaddresspools": "IPAddressPool",
	"floatingips": "FloatingIP", "poolmemories": "PoolMemory", "egressallocations": "EgressAllocation",
	"l2advertisements": "L2Advertisement", "bgpadvertisements": "BGPAdvertisement", "bgppeers": "BGPPeer",
	"bfdprofiles": "BFDProfile", "communities": "Community",
	"speakerstates": "SpeakerState",
}

// apiServer lists objects and accepts patches of them; Secrets can be read and written. Its watches show nothing, like
// watches that lag far behind. If it is live, the watches of Services and pods work.
type apiServer struct {
	mu      sync.Mutex
	objects map[string]map[string]any
	version int
	// patched are the paths of successful patches, and of what was created or updated, in order.
	patched []string
	// fail has the paths, and the collections, at which patches and creations fail.
	fail map[string]bool
	// lost has the paths at which a patch or a creation is answered by 504, after it landed (true) or instead.
	lost map[string]bool
	// requests counts what was asked for, by method and path, and watches and lists by these words and the path;
	// overtaken counts the refusals of writes of another version.
	requests  map[string]int
	overtaken int
	// invalid reports whether a patched Service is refused as invalid; nil refuses none.
	invalid func(*corev1.Service) bool
	// t fails when a patched object of our group is invalid.
	t testing.TB
	// events are the Events that were written.
	events chan *corev1.Event
	live   bool
	// dropsMode: it drops ipMode, as it does while the feature gate LoadBalancerIPMode is off.
	dropsMode bool
	// after is called when a write of another client or of the controller has landed; nil for nothing. mu is held.
	after func()
	// watches take the changes of the objects of a resource.
	watches map[string][]chan<- []byte
}

// newServer returns an API server that has these objects.
func newServer(t testing.TB, objects ...metav1.Object) *apiServer {
	t.Helper()
	s := &apiServer{t: t, objects: map[string]map[string]any{}, events: make(chan *corev1.Event, 100)}
	s.put(t, objects...)
	return s
}

// put creates or overwrites objects, like another client.
func (s *apiServer) put(t testing.TB, objects ...metav1.Object) {
	t.Helper()
	s.edit(func() {
		for _, o := range objects {
			must(t, s.store(o))
		}
	})
}

// remove deletes an object, like another client.
func (s *apiServer) remove(o metav1.Object) {
	s.edit(func() {
		at := collectionOf(o) + "/" + o.GetName()
		object := s.objects[at]
		delete(s.objects, at)
		s.show(at, object)
	})
}

// edit changes the server, or what it does.
func (s *apiServer) edit(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// collectionOf returns the path of the objects of this one's kind and namespace.
func collectionOf(o metav1.Object) string {
	kind, at := reflect.TypeOf(o).Elem(), "/apis/holdfast.dev/v1beta1/"
	if kind.PkgPath() == "k8s.io/api/core/v1" {
		at = "/api/v1/"
	}
	if o.GetNamespace() != "" {
		at += "namespaces/" + o.GetNamespace() + "/"
	}
	for resource, name := range kinds {
		if name == kind.Name() {
			at += resource
		}
	}
	return at
}

// store stores an object. mu is held.
func (s *apiServer) store(o metav1.Object) error {
	collection := collectionOf(o)
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	var object map[string]any
	body, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(body, &object)
	}
	if err != nil {
		return err
	}
	object["apiVersion"], object["kind"] = groupVersion(collection), kinds[path.Base(collection)]
	s.objects[collection+"/"+o.GetName()] = object
	s.show(collection+"/"+o.GetName(), object)
	if s.after != nil {
		s.after()
	}
	return nil
}

// show shows an object that changed, or that is no more, in the watches. mu is held.
func (s *apiServer) show(at string, object map[string]any) {
	watches := s.watches[path.Base(path.Dir(at))]
	if len(watches) == 0 {
		return
	}
	what := "MODIFIED"
	if s.objects[at] == nil {
		what = "DELETED"
	}
	change, _ := json.Marshal(map[string]any{"type": what, "object": object})
	for _, w := range watches {
		w <- change
	}
}

// watch shows changes until the client ends it.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	changes := make(chan []byte, 100)
	resource := path.Base(r.URL.Path)
	if s.mu.Lock(); s.live && (resource == "services" || resource == "pods") {
		if s.watches == nil {
			s.watches = map[string][]chan<- []byte{}
		}
		s.watches[resource] = append(s.watches[resource], changes)
	}
	s.mu.Unlock()
	for {
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case c := <-changes:
			_, _ = w.Write(c)
		}
	}
}

// get reads an object into o.
func (s *apiServer) get(t *testing.T, at string, o any) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	body, err := json.Marshal(s.objects[at])
	if err == nil {
		err = json.Unmarshal(body, o)
	}
	must(t, err)
}

// service returns a Service of the default namespace.
func (s *apiServer) service(t *testing.T, name string) *corev1.Service {
	t.Helper()
	out := &corev1.Service{}
	s.get(t, servicesPath+"/"+name, out)
	return out
}

// event returns the next Event that was written.
func (s *apiServer) event(t *testing.T) *corev1.Event {
	t.Helper()
	select {
	case e := <-s.events:
		return e
	case <-time.After(10 * time.Second):
		t.Fatal("no Event")
		return nil
	}
}

// landed returns the paths of the successful patches since its last call.
func (s *apiServer) landed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.patched
	s.patched = nil
	return out
}

func groupVersion(at string) string {
	if rest, core := strings.CutPrefix(at, "/api/"); core {
		return strings.Split(rest, "/")[0]
	}
	return strings.Join(strings.Split(at, "/")[2:4], "/")
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	s.count(r)
	switch {
	case query.Get("sendInitialEvents") != "":
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case query.Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		s.watch(w, r)
	case r.Method == http.MethodGet && (path.Dir(r.URL.Path) == secretsPath || kinds[path.Base(r.URL.Path)] == ""):
		s.read(w, r)
	case r.Method == http.MethodGet:
		s.list(w, r)
	case r.Method == http.MethodPost && path.Base(r.URL.Path) == "events":
		e := &corev1.Event{}
		decode(w, r, e)
		select {
		case s.events <- e:
		default: // more than any test looks at
		}
		_ = json.NewEncoder(w).Encode(e)
	case r.Method == http.MethodPost && r.URL.Path == memoriesPath:
		m := &v1beta1.PoolMemory{}
		if err := json.NewDecoder(r.Body).Decode(m); err != nil || m.Kind != "PoolMemory" {
			refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		s.write(w, r, m)
	case r.Method == http.MethodPost && r.URL.Path == allocationsPath:
		var content map[string]any
		o := &v1beta1.EgressAllocation{}
		body, err := io.ReadAll(r.Body)
		if err := errors.Join(err, json.Unmarshal(body, &content), json.Unmarshal(body, o)); err != nil {
			panic(err)
		}
		_, _ = apitest.Patched(s.t, map[string]any{}, content) // an invalid one fails the test
		s.write(w, r, o)
	case r.Method == http.MethodDelete && path.Dir(r.URL.Path) == allocationsPath:
		s.delete(w, r)
	case strings.HasPrefix(r.URL.Path, secretsPath) && (r.Method == http.MethodPost || r.Method == http.MethodPut):
		secret := &corev1.Secret{}
		decode(w, r, secret)
		secret.Namespace = own
		s.write(w, r, secret)
	case r.Method == http.MethodPatch:
		s.patch(w, r)
	default:
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason,
		Code: int32(code), Message: string(reason),
	})
}

// count counts a request.
func (s *apiServer) count(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests == nil {
		s.requests = map[string]int{}
	}
	what := r.Method
	switch {
	case r.URL.Query().Get("watch") != "":
		what = "watch"
	case r.Method == http.MethodGet && kinds[path.Base(r.URL.Path)] != "":
		what = "list"
	}
	s.requests[what+" "+r.URL.Path]++
}

// asked returns how often this was asked for at paths that begin so.
func (s *apiServer) asked(what, prefix string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for request, times := range s.requests {
		if strings.HasPrefix(request, what+" "+prefix) {
			n += times
		}
	}
	return n
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	for at, o := range s.objects {
		if path.Base(path.Dir(at)) == path.Base(r.URL.Path) {
			items = append(items, o)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": groupVersion(r.URL.Path), "kind": kinds[path.Base(r.URL.Path)] + "List", "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)},
	})
}

func (s *apiServer) read(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, stands := s.objects[r.URL.Path]
	if !stands {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(o)
}

// decode reads what a client sends in protobuf.
func decode(w http.ResponseWriter, r *http.Request, into runtime.Object) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, into)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	}
}

// write creates an object that must not exist, or updates an object that no other client wrote meanwhile.
func (s *apiServer) write(w http.ResponseWriter, r *http.Request, o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := collectionOf(o) + "/" + o.GetName()
	have, stands := s.objects[at]
	switch {
	case s.fail[at]:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case r.Method == http.MethodPost && stands:
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	case r.Method == http.MethodPut && !stands:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodPut && have["metadata"].(map[string]any)["resourceVersion"] != o.GetResourceVersion():
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
	default:
		if err := s.store(o); err != nil {
			panic(err)
		}
		s.patched = append(s.patched, at)
		_ = json.NewEncoder(w).Encode(s.objects[at])
	}
}

// delete deletes an object if it has the version that the client names.
func (s *apiServer) delete(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var options metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil {
		panic(err)
	}
	o, stands := s.objects[r.URL.Path]
	switch {
	case s.fail[r.URL.Path]:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case !stands:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case o["metadata"].(map[string]any)["resourceVersion"] != *options.Preconditions.ResourceVersion:
		s.overtaken++
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
	default:
		delete(s.objects, r.URL.Path)
		s.patched = append(s.patched, r.URL.Path)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess,
		})
	}
}

func (s *apiServer) patch(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := strings.TrimSuffix(r.URL.Path, "/status")
	o, stands := s.objects[at]
	var patch map[string]any
	switch err := json.NewDecoder(r.Body).Decode(&patch); {
	case err != nil:
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	case s.fail[r.URL.Path], s.fail[path.Dir(at)]:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	case !stands:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	lands, lost := s.lost[r.URL.Path]
	if lost && !lands {
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
		return
	}
	have := o["metadata"].(map[string]any)
	m, _ := patch["metadata"].(map[string]any)
	if m["resourceVersion"] != nil && m["resourceVersion"] != have["resourceVersion"] {
		s.overtaken++
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	var patched map[string]any
	var err error
	if r.Header.Get("Content-Type") == string(types.StrategicMergePatchType) {
		patched, err = strategicpatch.StrategicMergeMapPatch(runtime.DeepCopyJSON(o), patch, corev1.Service{})
	} else {
		patched, err = apitest.Patched(s.t, o, patch)
	}
	if err != nil || s.refuses(patched) {
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	in, found, _ := unstructured.NestedSlice(patched, "status", "loadBalancer", "ingress")
	if found && s.dropsMode {
		for _, one := range in {
			delete(one.(map[string]any), "ipMode")
		}
		must(s.t, unstructured.SetNestedSlice(patched, in, "status", "loadBalancer", "ingress"))
	}
	s.objects[at], o = patched, patched
	s.version++
	metadata := o["metadata"].(map[string]any)
	metadata["resourceVersion"] = strconv.Itoa(s.version)
	s.patched = append(s.patched, r.URL.Path)
	if finalizers, _ := metadata["finalizers"].([]any); metadata["deletionTimestamp"] != nil && len(finalizers) == 0 {
		delete(s.objects, at)
	}
	s.show(at, o)
	if s.after != nil {
		s.after()
	}
	if lost {
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
		return
	}
	_ = json.NewEncoder(w).Encode(o)
}

// refuses asks invalid about a Service.
func (s *apiServer) refuses(patched map[string]any) bool {
	if s.invalid == nil || patched["kind"] != "Service" {
		return false
	}
	var service corev1.Service
	body, err := json.Marshal(patched)
	if err == nil {
		err = json.Unmarshal(body, &service)
	}
	if err != nil {
		panic(err)
	}
	return s.invalid(&service)
}

// newTestSyncer returns a syncer whose cluster shows the server's present objects, without
// address conflicts.
func newTestSyncer(t testing.TB, server *apiServer) *syncer {
	t.Helper()
	h := httptest.NewServer(server)
	t.Cleanup(h.Close)
	return newSyncerFor(t, &rest.Config{Host: h.URL})
}

func newSyncerFor(t testing.TB, api *rest.Config) *syncer {
	t.Helper()
	clients, err := k8s.ClientsFor(api, "test")
	must(t, err)
	log := slog.New(slog.DiscardHandler)
	cluster := k8s.New(clients, k8s.Config{Log: log, Namespace: own, Kick: func() {}, KickStates: func() {}})
	go func() { _ = cluster.Run(t.Context()) }()
	must(t, cluster.WaitForSync(t.Context()))
	s := newSyncer(cluster, config.Options{Default: true}, log)
	s.speakers.claims = map[netip.Addr]foreignClaim{}
	return s
}

// syncOnce does one run, which must succeed; it returns when the next one is due.
func syncOnce(t testing.TB, s *syncer) time.Duration {
	t.Helper()
	d, err := s.run(t.Context(), time.Now())
	must(t, err)
	if _, measures := t.(*testing.B); !measures {
		checkStatuses(t, s, d)
	}
	return d.nextRun()
}

// checkStatuses checks that the statuses that are remembered are those that the function returns.
func checkStatuses(t testing.TB, s *syncer, d *syncRun) {
	t.Helper()
	inputs := s.serviceInputs(d)
	for _, svc := range d.state.Services {
		got, want := *s.statuses.Of(svc), inputs(svc).status(s.options)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the status of %s is remembered as %+v, want %+v", svc.Key, got, want)
		}
	}
}

// overtakenWait is how long the next run may wait after another client overtook a write.
const overtakenWait = 200 * time.Millisecond

// wantsAgain checks that an overtaken run asks for another one soon.
func wantsAgain(t *testing.T, again time.Duration) {
	t.Helper()
	if again <= 0 || again > overtakenWait {
		t.Errorf("the next run is due in %v, want at most %v", again, overtakenWait)
	}
}

// syncUntil runs until the condition holds, as often as a loop would.
func syncUntil(t *testing.T, s *syncer, what string, done func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		d, err := s.run(t.Context(), time.Now())
		checkStatuses(t, s, d)
		if done() {
			return
		}
		again := d.nextRun()
		if err != nil || again == 0 {
			again = time.Second // as the loop retries
		}
		select {
		case <-time.After(again):
		case <-late:
			t.Fatalf("it does not come to this: %s", what)
		}
	}
}

func hasPatched(paths []string, at string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return strings.TrimSuffix(p, "/status") == at })
}
