package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// TestSelf: metadata and problems of a node while its kube-proxy has not served yet and its filter is never set.
func TestSelf(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		log := slog.New(slog.DiscardHandler)
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
		defer proxy.Close()
		kicked := make(chan struct{}, 1)
		w := &syncer{
			node: "w1", log: log, owners: &owners{}, filter: newTestGuard(false), // nothing is ever set
			layer2:    layer2.New(layer2.Config{Log: log, Links: func() []lb.Interface { return nil }}),
			liveness:  liveness.New(liveness.Config{Log: log}),
			bgp:       bgp.New(bgp.Config{Log: log, Command: testEngine}),
			boot:      kubeproxy.New(kubeproxy.Config{Log: log, Livez: proxy.Listener.Addr().String(), Kick: func() { kicked <- struct{}{} }}),
			endpoints: kubeproxy.NewEndpoints(kubeproxy.EndpointsConfig{Log: log}),
		}
		reasons := func() (out []lb.Reason) {
			for _, p := range w.unfitProblems() {
				out = append(out, p.Reason)
			}
			return out
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.boot.Run(ctx) }()
		<-w.boot.Looked()
		if got := w.self(inputs{stopping: true}); got.Unfit != lb.Booting|lb.Sessionless || !got.Stopping {
			t.Errorf("at first the metadata is %+v", got)
		}
		if diff := cmp.Diff([]lb.Reason{lb.KubeProxyNotReady}, reasons()); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		nstest.Until(t, 10*time.Second, "the filter's grace to end", func() bool { return w.self(inputs{}).Unfit.Has(lb.Booting | lb.Unfiltered) })
		node.Output("nft", "add table ip kube-proxy; add table ip6 kube-proxy")
		<-kicked
		if got := w.self(inputs{}); got.Unfit != lb.Unfiltered|lb.Sessionless {
			t.Errorf("when kube-proxy has served the metadata is %+v", got)
		}
		if got := reasons(); got != nil {
			t.Errorf("when kube-proxy has served the problems are %v", got)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestRefusedProblems(t *testing.T) {
	object := lb.Object{Kind: "Node", Name: "w1"}
	want := []lb.Problem{{Object: object, Reason: lb.SocketRefused,
		Message: "node w1 cannot answer on link eth0, and leaves it to others: open IPv4 socket on eth0: operation not permitted"}}
	got := refusedProblems(object, []lb.Refusal{{Link: "eth0", Error: "open IPv4 socket on eth0: operation not permitted"}})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestKubeProxyLivez: the flag is an address and a port, or empty.
func TestKubeProxyLivez(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "holdfast-system")
	for value, ok := range map[string]bool{"": true, "127.0.0.1:10256": true, "[::1]:10256": true, "10256": false, "http://127.0.0.1:10256": false} {
		var s settings
		if err := s.parse([]string{"--node-name=w1", "--kube-proxy-livez=" + value}); (err == nil) != ok {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// TestAnnounceRate: the flag has bounds.
func TestAnnounceRate(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "holdfast-system")
	for value, ok := range map[string]bool{"100": true, "100000": true, "99": false, "100001": false, "-1": false} {
		var s settings
		if err := s.parse([]string{"--node-name=w1", "--announce-rate=" + value}); (err == nil) != ok {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// TestFilterOwnedByOther: another program owns the filter's table (NFT_TABLE_F_OWNER), so that it cannot be written.
// The metadata says so after the grace, and says when the filter is in force again.
func TestFilterOwnedByOther(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		log := slog.New(slog.DiscardHandler)
		kicked := make(chan struct{}, 9)
		w := &syncer{
			node: "w1", log: log, owners: &owners{}, filter: newGuard(log, settings{nodeName: "w1"}, nil, func() { kicked <- struct{}{} }),
			layer2:    layer2.New(layer2.Config{Log: log, Links: func() []lb.Interface { return nil }}),
			liveness:  liveness.New(liveness.Config{Log: log}),
			bgp:       bgp.New(bgp.Config{Log: log, Command: testEngine}),
			boot:      kubeproxy.New(kubeproxy.Config{Log: log}),
			endpoints: kubeproxy.NewEndpoints(kubeproxy.EndpointsConfig{Log: log}),
		}
		set := func() error { return w.filter.set(plan.Plan{}, nil, lb.Node{Name: "w1"}, nil) }
		if err := set(); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.filter.run(ctx) }()
		holder := node.Command("nft", "-i")
		stdin, err := holder.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := holder.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(stdin, "delete table inet holdfast; add table inet holdfast { flags owner; }\n"); err != nil {
			t.Fatal(err)
		}
		nstest.Until(t, 5*time.Second, "the table is held", func() bool { return node.Command("nft", "add", "chain", "inet", "holdfast", "x").Run() != nil })
		held := time.Now()
		<-kicked
		if got := w.self(inputs{}).Unfit; got != lb.Unfiltered|lb.Sessionless || time.Since(held) < filter.Grace/2 {
			t.Errorf("owned by another program for %v the metadata is %v", time.Since(held), got)
		}
		if err := set(); err == nil {
			t.Error("it can be set")
		}
		if err := stdin.Close(); err != nil {
			t.Fatal(err)
		}
		_ = holder.Wait()
		<-kicked
		if got := w.self(inputs{}).Unfit; got != lb.Sessionless {
			t.Errorf("released, the metadata is %v", got)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
