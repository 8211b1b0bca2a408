package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// asking is an Endpoints whose kube-proxy is the test's.
type asking struct {
	*Endpoints
	answer atomic.Pointer[func() (int, error)]
	asked  atomic.Int32
	kicks  atomic.Int32
}

func newAsking(t *testing.T) *asking {
	a := &asking{}
	a.Endpoints = NewEndpoints(slog.New(slog.DiscardHandler), func() { a.kicks.Add(1) })
	a.ask = func(context.Context, netip.AddrPort) (int, error) {
		a.asked.Add(1)
		return (*a.answer.Load())()
	}
	a.says(0, nil)
	nstest.Running(t, a.Run)
	return a
}

func (a *asking) says(n int, err error) {
	f := func() (int, error) { return n, err }
	a.answer.Store(&f)
}

// set sets the Services, and has them asked about. It returns those that wait before that.
func (a *asking) set(services map[lb.Key]HealthPort) []lb.Key {
	defer a.Ask()
	a.Set(services)
	return a.Waiting()
}

func health(names ...string) map[lb.Key]HealthPort {
	out := map[lb.Key]HealthPort{}
	for _, name := range names {
		out[lb.Key{Namespace: "default", Name: name}] = HealthPort{
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.11")}, Port: 31000,
		}
	}
	return out
}

// TestEndpoints: what was there at first is not asked about; what comes waits for kube-proxy's word, and is asked about
// again only after it was gone.
func TestEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		want := func(when string, waiting int, services ...string) {
			t.Helper()
			if got := a.set(health(services...)); len(got) != waiting || len(a.Waiting()) != waiting {
				t.Errorf("%s: waiting %v, %v", when, got, a.Waiting())
			}
		}
		want("first", 0, "old")
		time.Sleep(time.Minute)
		if n := a.asked.Load(); n != 0 {
			t.Errorf("asked %d times about what was there", n)
		}
		want("another", 1, "old", "new")
		time.Sleep(time.Minute)
		want("while kube-proxy serves none", 1, "old", "new")
		a.says(2, nil)
		time.Sleep(askInterval)
		synctest.Wait()
		if n := a.kicks.Load(); n != 1 {
			t.Errorf("kicked %d times", n)
		}
		want("served", 0, "old", "new")
		a.says(0, nil)
		n := a.asked.Load()
		time.Sleep(time.Minute)
		want("served before", 0, "old", "new")
		if a.asked.Load() != n {
			t.Error("asked on")
		}
		want("gone", 0, "old")
		want("back", 1, "old", "new")
	})
}

// TestNobodyAnswers: without a listener a Service waits for askPatience; with a kube-proxy that serves nothing, for as
// long as that takes.
func TestNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		a.set(nil)
		a.says(0, errors.New("connection refused"))
		a.set(health("new"))
		time.Sleep(askPatience - time.Second)
		a.says(0, nil) // it was started again
		time.Sleep(2 * askPatience)
		if len(a.Waiting()) != 1 {
			t.Error("it did not wait for a kube-proxy that serves no endpoint")
		}
		a.says(0, errors.New("connection refused"))
		time.Sleep(askPatience - time.Second)
		if len(a.Waiting()) != 1 {
			t.Error("it did not wait")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(a.Waiting()) != 0 || a.kicks.Load() != 1 {
			t.Errorf("waiting for %v, kicked %d times", a.Waiting(), a.kicks.Load())
		}
		var led atomic.Bool
		a.set(map[lb.Key]HealthPort{{Namespace: "default", Name: "started"}: {
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.11")}, Port: 31001, HeadStart: led.Load,
		}})
		time.Sleep(2 * askInterval)
		if len(a.Waiting()) != 1 {
			t.Error("it does not wait for a Service whose head start is not in force")
		}
		led.Store(true)
		time.Sleep(2 * askInterval)
		if len(a.Waiting()) != 0 {
			t.Error("it waits for a Service that has a head start, and that kube-proxy does not know")
		}
	})
}

// TestEndpointsBounded: no more than maxWaiting Services wait, and one without a health port does not.
func TestEndpointsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		a.set(nil)
		var names []string
		for i := range maxWaiting + 10 {
			names = append(names, fmt.Sprint(i))
		}
		if got := len(a.set(health(names...))); got != maxWaiting {
			t.Errorf("%d wait", got)
		}
		if got := a.set(map[lb.Key]HealthPort{{Namespace: "default", Name: "portless"}: {}}); len(got) != 0 {
			t.Errorf("waiting for %v", got)
		}
	})
}

// TestServed asks real servers.
func TestServed(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		want    int
		fails   bool
	}{
		{"endpoints", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"localEndpoints": 2}`) }, 2, false},
		{"none", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"localEndpoints": 0, "serviceProxyHealthy": true}`)
		}, 0, false},
		{"endpoints of an unhealthy proxy", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"localEndpoints": 1, "serviceProxyHealthy": false}`)
		}, 1, false},
		{"another program", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) }, 0, true},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }, 0, true},
		{"it hangs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 0, false},
	} {
		s := httptest.NewServer(tt.handler)
		got, err := served(t.Context(), newClient(200*time.Millisecond), netip.MustParseAddrPort(s.Listener.Addr().String()))
		s.Close()
		if got != tt.want || (err != nil) != tt.fails {
			t.Errorf("%s: %d, %v", tt.name, got, err)
		}
	}
	closed := httptest.NewServer(nil)
	at := netip.MustParseAddrPort(closed.Listener.Addr().String())
	closed.Close()
	if got, err := served(t.Context(), newClient(time.Second), at); err == nil {
		t.Errorf("a closed port: %d", got)
	}
}

var must = nstest.Must
