package bgp

import (
	"net/netip"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// restartBits returns the restart bit of an OPEN, the forwarding bit of its family, and the restart time.
func restartBits(open *gobgp.BGPOpen) (restart, forwarding bool, seconds uint16) {
	for _, p := range open.OptParams {
		for _, c := range p.(*gobgp.OptionParameterCapability).Capability {
			if gr, ok := c.(*gobgp.CapGracefulRestart); ok && len(gr.Tuples) == 1 {
				return gr.Flags&0x08 != 0, gr.Tuples[0].Flags&0x80 != 0, gr.Time
			}
		}
	}
	return false, false, 0
}

// A restart sends no NOTIFICATION, sets the forwarding bit, and sends End-of-RIB last.
func TestGracefulRestart(t *testing.T) {
	r := newRouter(t, "127.0.0.1", 65001, func(r *router) { r.graceful = true })
	// A peer that never comes up must not delay the others.
	gone := lb.Peer{Name: "gone", LocalASN: 65000, PeerASN: 65009, Address: netip.MustParseAddr("127.0.0.3"), Port: 1, GracefulRestart: true}
	peer := r.peer("r", 65000)
	peer.GracefulRestart = true
	d := desire([]lb.Peer{peer, gone}, route("198.51.100.1/32", "r"), route("198.51.100.2/32", "r"))
	const plain = " igp path [65000] via 127.0.0.1"
	up := []string{"+ 198.51.100.1/32" + plain, "+ 198.51.100.2/32" + plain, "end of RIB"}

	first, stop := run(t)
	set(t, first, d)
	heard := up
	await(t, "first start", lines(heard...), r.log)
	stop()
	heard = append(heard, "connection closed")
	await(t, "stop", lines(heard...), r.log)

	second, _ := run(t)
	set(t, second, d)
	heard = append(heard, up...)
	await(t, "second start", lines(heard...), r.log)

	r.drop()
	heard = append(append(heard, "connection closed"), up...)
	await(t, "lost connection", lines(heard...), r.log)

	d.RouterID = netip.MustParseAddr("192.0.2.2")
	set(t, second, d)
	heard = append(append(heard, "connection closed"), up...)
	await(t, "other router ID", lines(heard...), r.log)

	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.opens); n != 4 || r.opens[n-1].ID != d.RouterID {
		t.Errorf("%d OPENs, the last from %v", n, r.opens[n-1].ID)
	}
	for i, open := range r.opens {
		if restart, forwarding, seconds := restartBits(open); !restart || !forwarding || seconds != 20 {
			t.Errorf("OPEN %d: restart %v, forwarding %v, time %d s", i, restart, forwarding, seconds)
		}
	}
}

// Leave sends a NOTIFICATION even to a peer with graceful restart, and is final.
func TestLeave(t *testing.T) {
	r := newRouter(t, "127.0.0.1", 65001, func(r *router) { r.graceful = true })
	peer := r.peer("r", 65000)
	peer.GracefulRestart = true
	s, _ := run(t)
	d := desire([]lb.Peer{peer}, route("198.51.100.1/32", "r"))
	set(t, s, d)
	heard := []string{"+ 198.51.100.1/32 igp path [65000] via 127.0.0.1", "end of RIB"}
	await(t, "start", lines(heard...), r.log)
	s.Leave()
	set(t, s, d)
	await(t, "leave", lines(append(heard, "notification 6/3", "connection closed")...), r.log)
	if got := s.Sessions(); got != nil {
		t.Errorf("sessions after Leave: %v", got)
	}
}

// Shutdown tells even a peer with graceful restart that the node goes down, and why; it is final.
func TestShutdown(t *testing.T) {
	r := newRouter(t, "127.0.0.1", 65001, func(r *router) { r.graceful = true })
	peer := r.peer("r", 65000)
	peer.GracefulRestart = true
	gone := lb.Peer{Name: "gone", LocalASN: 65000, PeerASN: 65009, Address: netip.MustParseAddr("127.0.0.3"), Port: 1, GracefulRestart: true}
	s, stop := run(t)
	d := desire([]lb.Peer{peer, gone}, route("198.51.100.1/32", "r"))
	set(t, s, d)
	heard := []string{"+ 198.51.100.1/32 igp path [65000] via 127.0.0.1", "end of RIB"}
	await(t, "start", lines(heard...), r.log)
	s.Shutdown("node w1 goes down")
	set(t, s, d)
	stop()
	await(t, "shutdown", lines(append(heard, "notification 6/2 node w1 goes down", "connection closed")...), r.log)
	if n := r.opened(); n != 1 {
		t.Errorf("%d sessions were opened", n)
	}
}

// A route that the node leaves bears GRACEFUL_SHUTDOWN, once, and LOCAL_PREF 0 within the AS (RFC 8326). Nothing is withdrawn
// in between.
func TestLeavingRoute(t *testing.T) {
	inner, outer := newRouter(t, "127.0.0.1", 65000), newRouter(t, "127.0.0.2", 65001)
	s, _ := run(t)
	peers := []lb.Peer{inner.peer("inner", 65000), outer.peer("outer", 65000)}
	r := route("198.51.100.1/32", "inner", "outer")
	r.LocalPref, r.Communities = 300, []lb.Community{{A: 1, B: 2}}
	set(t, s, desire(peers, r))
	const innerPlain, outerPlain = "+ 198.51.100.1/32 igp path via 127.0.0.1 preference 300 communities 1:2", "+ 198.51.100.1/32 igp path [65000] via 127.0.0.1 communities 1:2"
	await(t, "first, inner", innerPlain, inner.log)
	await(t, "first, outer", outerPlain, outer.log)

	r.Leaving = true
	set(t, s, desire(peers, r))
	const innerLeaving, outerLeaving = "+ 198.51.100.1/32 igp path via 127.0.0.1 preference 0 communities 1:2 65535:0", "+ 198.51.100.1/32 igp path [65000] via 127.0.0.1 communities 1:2 65535:0"
	await(t, "leaving, inner", lines(innerPlain, innerLeaving), inner.log)
	await(t, "leaving, outer", lines(outerPlain, outerLeaving), outer.log)

	r.Communities = []lb.Community{{A: 65535, B: 0}}
	set(t, s, desire(peers, r))
	await(t, "an advertisement has it too", lines(outerPlain, outerLeaving, "+ 198.51.100.1/32 igp path [65000] via 127.0.0.1 communities 65535:0"), outer.log)

	set(t, s, desire(peers))
	await(t, "left", lines(innerPlain, innerLeaving, "+ 198.51.100.1/32 igp path via 127.0.0.1 preference 0 communities 65535:0", "- 198.51.100.1/32"), inner.log)
}
