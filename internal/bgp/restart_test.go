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

// A restart sends no NOTIFICATION, sets the forwarding bit, and sends End-of-RIB last. A node that leaves sends one.
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

	second.Leave() // and this is final
	set(t, second, d)
	await(t, "leave", lines(append(heard, "notification 6/3", "connection closed")...), r.log)
	if got := second.Sessions(); got != nil {
		t.Errorf("sessions after Leave: %v", got)
	}

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
