package main

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/relay"
	"k8s.io/client-go/rest"
)

// TestFilterOnlyRelayed: while the other speakers are not known, the limits on new connections do not apply to addresses that the
// kernel still relays.
func TestFilterOnlyRelayed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const address = "192.0.2.100"
		self := nstest.Self(t)
		nstest.Veth(t, self, "eth0", nstest.New(t), "eth0")
		log := slog.New(slog.DiscardHandler)
		links := func() []link.Link {
			l := self.Link("eth0").Attrs()
			return []link.Link{{Index: l.Index, Name: l.Name, MAC: link.MACFrom(l.HardwareAddr), Up: true, Broadcast: true}}
		}
		former := relay.New(relay.Config{Log: log, Links: links, Timers: relay.Timers{SetTimeout: 10 * time.Second}})
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- former.Run(ctx) }()
		former.Set(relay.Desired{Relays: []lb.Relay{{Address: netip.MustParseAddr(address), Former: "w2", Via: netip.MustParseAddr("192.0.2.2"), Link: "eth0"}}})
		stop()
		if err := <-ran; err != nil {
			t.Fatal(err)
		}

		clients, err := k8s.ClientsFor(&rest.Config{Host: "http://192.0.2.3"}, "test")
		if err != nil {
			t.Fatal(err)
		}
		w := &syncer{node: "w1", log: log, filter: newTestGuard(false), relay: relay.New(relay.Config{Log: log, Links: links})}
		if w.cluster, err = k8s.New(clients, k8s.Config{Log: log, Component: "test", Namespace: "holdfast", DaemonSet: "speaker", Speaker: true, Kick: func() {}}); err != nil {
			t.Fatal(err)
		}
		if err := w.filterOnly(w.read(links())); err != nil {
			t.Fatal(err)
		}
		if got := self.Output("nft", "list", "table", "inet", "holdfast"); !strings.Contains(got, address) {
			t.Errorf("%s is relayed, but not in the filter:\n%s", address, got)
		}
	})
}
