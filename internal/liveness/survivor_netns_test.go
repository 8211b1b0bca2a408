package liveness

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestClientOfTheDead: the owner of an address is dead, and no foreign machine is known; a client asks for that address. So the
// survivor, which announces nothing, learns on real links that its own link works, and may take over.
func TestClientOfTheDead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, client := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", client, "eth0")
		self.AddAddress("eth0", "192.0.2.1/24")
		client.AddAddress("eth0", "192.0.2.50/24")
		address, dead := netip.MustParseAddr("192.0.2.100"), [6]byte{2, 0x53, 0, 0, 0, 2}

		links := link.New(quiet, func() {})
		r := layer2.New(layer2.Config{Log: quiet, Links: links.Links, Gateways: link.Gateways})
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 2)
		go func() { ran <- links.Run(ctx) }()
		go func() { ran <- r.Run(ctx) }()
		defer func() {
			stop()
			for range cap(ran) {
				if err := <-ran; err != nil {
					t.Error(err)
				}
			}
		}()
		nstest.Until(t, 30*time.Second, "links known", links.Synced)
		r.Set(layer2.Desired{
			Yield: []netip.Addr{address}, Owners: map[netip.Addr]string{address: "b"},
			Speakers: map[lb.MAC]bool{lb.MACFrom(self.MAC("eth0")): true, dead: true},
		})
		w := newWire(r, links.Links)
		w.set(map[string]lb.Member{"b": {Links: []lb.Link{{Name: "eth0", MAC: dead, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}},
			nil, map[netip.Addr]string{address: "b"}, netip.MustParseAddr("192.0.2.1"))
		if got := w.ask("b").Foreign; got != heartbeat.NotAsked {
			t.Errorf("before the client asks, foreign machines: %v", got)
		}
		var got heartbeat.Answer
		nstest.Until(t, 30*time.Second, "the client answers", func() bool {
			client.Send(address)
			got = w.ask("b")
			return got.Foreign == heartbeat.Answered
		})
		if got.Node != heartbeat.Silent {
			t.Errorf("the dead node: %v", got.Node)
		}
	})
}
