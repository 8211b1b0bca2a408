package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
)

// floatingPath is of a namespace in which no Service is.
const floatingPath = "/apis/holdfast.dev/v1beta1/namespaces/other/floatingips"

// ask makes the controller see that a Service asks for an address, and nothing else that has happened.
func ask(t *testing.T, s *syncer, name, address string) {
	t.Helper()
	for key, sv := range s.cluster.Services().All() {
		if key.Name != name {
			continue
		}
		asks := k8s.ServiceUpdate{Service: sv, Annotations: map[string]string{config.AnnotationAddresses: address}}
		_, err := s.cluster.UpdateService(t.Context(), asks)
		must(t, err)
	}
}

// rival returns a Service that asks for an address that no pool has.
func rival() *corev1.Service {
	sv := loadBalancer("rival")
	metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationAddresses, "203.0.113.9")
	return sv
}

// holders returns which objects have each address in their status; no address may have two.
func (s *apiServer) holders(t *testing.T) map[string]string {
	t.Helper()
	s.mu.Lock()
	paths := slices.Collect(maps.Keys(s.objects))
	s.mu.Unlock()
	out := map[string]string{}
	hold := func(at, address string) {
		if out[address] != "" {
			t.Errorf("%s is held by %s and by %s", address, out[address], path.Base(at))
		}
		out[address] = path.Base(at)
	}
	for _, at := range paths {
		switch {
		case strings.Contains(at, "/services/"):
			var sv corev1.Service
			s.get(t, at, &sv)
			for _, in := range sv.Status.LoadBalancer.Ingress {
				hold(at, in.IP)
			}
		case strings.HasPrefix(at, floatingPath):
			var f v1beta1.FloatingIP
			s.get(t, at, &f)
			for _, a := range f.Status.Addresses {
				hold(at, a)
			}
		}
	}
	return out
}

// TestWriteWithoutAnswer: the write that gives an address ends in 504, and it has landed or not. The watch shows
// nothing. Another Service asks for the address; it never gets it, and the first one has it in the end.
func TestWriteWithoutAnswer(t *testing.T) {
	for _, at := range []string{
		servicesPath + "/holder/status", floatingPath + "/holder/status", floatingPath + "/holder",
	} {
		for _, lands := range []bool{true, false} {
			t.Run(fmt.Sprint(strings.TrimPrefix(strings.TrimPrefix(at, "/apis/holdfast.dev/v1beta1"), "/api/v1"),
				" landed ", lands), func(t *testing.T) {
				server := newServer(t, lan(), rival())
				server.lost = map[string]bool{at: lands}
				if strings.HasPrefix(at, servicesPath) {
					server.put(t, loadBalancer("holder"))
				} else {
					server.put(t, &v1beta1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "holder", UID: "1"}})
				}
				s := newTestSyncer(t, server)
				if _, err := s.sync(t.Context()); err == nil {
					t.Fatal("a write without an answer is no error")
				}
				server.edit(func() { server.lost = nil })
				ask(t, s, "rival", "192.0.2.0")
				syncUntil(t, s, "the holder has its address, and that is known", func() bool {
					return server.holders(t)["192.0.2.0"] == "holder" && len(s.cluster.Claims()) == 0
				})
				syncOnce(t, s)
				if got := server.holders(t); len(got) != 1 || got["192.0.2.0"] != "holder" {
					t.Errorf("the holders are %v", got)
				}
			})
		}
	}
}

// TestUnansweredThatNobodyRepeats: what would have given an address landed nowhere, and nothing is left to write. A
// read past the caches frees the address.
func TestUnansweredThatNobodyRepeats(t *testing.T) {
	pool := lan()
	pool.Spec.Addresses = []string{"192.0.2.1/32"}
	server := newServer(t, pool, rival(), loadBalancer("holder"))
	server.lost = map[string]bool{servicesPath + "/holder/status": false}
	s := newTestSyncer(t, server)
	if _, err := s.sync(t.Context()); err == nil {
		t.Fatal("a write without an answer is no error")
	}
	ask(t, s, "rival", "192.0.2.1")
	// Only the rival is served any more, by another process's options as it were: the holder's write is not repeated.
	server.edit(func() {
		server.objects[servicesPath+"/holder"]["spec"].(map[string]any)["loadBalancerClass"] = "example.org/other"
	})
	s.options.Default = false
	s.options.LoadBalancerClass = ""
	if n := len(s.cluster.Claims()); n != 1 {
		t.Fatalf("%d claims", n)
	}
	syncUntil(t, s, "the claim is settled by a read", func() bool { return len(s.cluster.Claims()) == 0 })
	if server.asked("GET", servicesPath+"/holder") == 0 {
		t.Error("nothing was read")
	}
}

// pipes is a listener without sockets, for tests whose time is not real.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error { return nil }

func (p pipes) Addr() net.Addr { return &net.IPAddr{} }

func (p pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestBrokenWebhook: for ten minutes the API server answers 500 to every write in one namespace. It is asked ever less
// often, nothing is listed again, and no other namespace waits for it.
func TestBrokenWebhook(t *testing.T) {
	const broken, many = "/api/v1/namespaces/broken/services", 20
	_, err := apitest.Read() // which takes long
	must(t, err)
	// One error handler sleeps until some time after the last error of the process, by the real clock: for decades
	// here.
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil
	t.Cleanup(func() { utilruntime.ErrorHandlers = handlers })
	synctest.Test(t, func(t *testing.T) {
		server := newServer(t, lan())
		server.fail = map[string]bool{broken: true}
		for i := range many {
			sv := loadBalancer(fmt.Sprint("a", i))
			sv.Namespace = "broken"
			server.put(t, sv)
		}
		server.put(t, loadBalancer("web"), rival())
		p := pipes{make(chan net.Conn), make(chan struct{})}
		h := &http.Server{Handler: server}
		defer func() { _ = h.Close() }()
		defer close(p.closed)
		go func() { _ = h.Serve(p) }()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		s := newSyncerFor(t, &rest.Config{Host: "http://api", Dial: p.dial})
		lists, ended := server.asked("list", "/"), make(chan struct{})
		go func() {
			defer close(ended)
			_ = s.loop.Run(ctx)
		}()
		time.Sleep(time.Second)
		if got := server.holders(t); len(got) != 1 {
			t.Errorf("a second after the start the holders are %v", got)
		}
		time.Sleep(5 * time.Minute)
		ask(t, s, "rival", "192.0.2.200")
		s.loop.Kick()
		time.Sleep(time.Second)
		if got := server.holders(t); got["192.0.2.200"] != "rival" {
			t.Errorf("a second after it was asked for an address the holders are %v", got)
		}
		time.Sleep(5 * time.Minute)
		if n := server.asked("PATCH", broken); n < many || n > 20*many {
			t.Errorf("%d Services were written %d times in ten minutes", many, n)
		}
		if n := server.asked("list", "/") - lists; n > 0 {
			t.Errorf("%d lists", n)
		}
		server.edit(func() { server.fail = nil })
		time.Sleep(2 * time.Minute)
		if got := server.holders(t); len(got) != many+2 {
			t.Errorf("when the webhook works again the holders are %v", got)
		}
		stop()
		<-ended
	})
}

// TestMemoryOfOnePool: a pool whose memory cannot be written gives nothing back, and all others do.
func TestMemoryOfOnePool(t *testing.T) {
	const other = memoriesPath + "/other"
	pool := lan()
	pool.Name, pool.UID, pool.Spec.Addresses = "other", "uid-other", []string{"198.51.100.0/24"}
	server := newServer(t, lan(), pool, leaving("stays", "192.0.2.1"), leaving("goes", "198.51.100.1"))
	server.fail = map[string]bool{memoriesPath + "/lan": true}
	s := newTestSyncer(t, server)
	if _, err := s.sync(t.Context()); err == nil {
		t.Error("a memory was not written, and that is no error")
	}
	landed := server.landed()
	differs := !hasPatched(landed, other) || !hasPatched(landed, servicesPath+"/goes") ||
		hasPatched(landed, servicesPath+"/stays")
	if differs {
		t.Errorf("written: %v", landed)
	}
}

// TestNewFloatingIP: a new FloatingIP gets its address in the first run, and no write of it is refused.
func TestNewFloatingIP(t *testing.T) {
	server := newServer(t, lan(),
		&v1beta1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "new", UID: "1"}})
	s := newTestSyncer(t, server)
	syncOnce(t, s)
	if got := server.holders(t); got["192.0.2.0"] != "new" || server.overtaken > 0 {
		t.Errorf("the holders are %v, and %d writes were refused", got, server.overtaken)
	}
}

// TestRefusedOften: a Service that the API server refuses is not written in each run.
func TestRefusedOften(t *testing.T) {
	server := newServer(t, lan(), loadBalancer("web"))
	server.invalid = func(sv *corev1.Service) bool { return len(sv.Status.LoadBalancer.Ingress) > 0 }
	s := newTestSyncer(t, server)
	start := time.Now()
	for range 100 {
		syncOnce(t, s)
	}
	// Two more each time that it is tried again, after 200 ms, 400 ms and so on.
	maxPatches := 5
	for wait := 200 * time.Millisecond; wait < time.Since(start); wait *= 2 {
		maxPatches += 2
	}
	if n := server.asked("PATCH", servicesPath); n > maxPatches {
		t.Errorf("%d patches in 100 runs, want %d", n, maxPatches)
	}
}

// TestSpeakerStateWriters: two loops write conditions of one SpeakerState, each as it read it. Both conditions are
// there.
func TestSpeakerStateWriters(t *testing.T) {
	const statesPath = "/apis/holdfast.dev/v1beta1/speakerstates"
	server := newServer(t, &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: "w1"}})
	s := newTestSyncer(t, server)
	must(t, s.cluster.WaitForSpeakerStates(t.Context()))
	read := s.cluster.SpeakerStates()[0]
	for _, kind := range []string{v1beta1.ConditionValid, v1beta1.ConditionEndpointsWithdrawn} {
		wrote, err := s.cluster.UpdateSpeakerState(t.Context(), read,
			[]metav1.Condition{{Type: kind, Status: metav1.ConditionFalse,
				Reason: "Reason"}})
		if err != nil || !wrote {
			t.Fatalf("%s: %v, %v", kind, wrote, err)
		}
	}
	var got v1beta1.SpeakerState
	if server.get(t, statesPath+"/w1", &got); len(got.Status.Conditions) != 2 {
		t.Errorf("the conditions are %v", got.Status.Conditions)
	}
}
