package engine

import (
	"context"
	"fmt"

	"github.com/osrg/gobgp/v4/api"
)

// absent is the address of a peer that never comes up: the IPv4 dummy address (RFC 7600).
const absent = "192.0.0.8"

// startDeferral has GoBGP send nothing until the session is up for deferralTime, if the next hop of routes of the other family
// is not known: it may depend on the router's OPEN, which GoBGP shows when the session is up. If End-of-RIB came before these
// routes, a router with graceful restart would drop those that it kept. GoBGP defers as long as any peer has not sent its
// End-of-RIB (RFC 4724 section 4.1), which absent never does.
func (e *engine) startDeferral() error {
	if !e.settings.DualStack || !e.settings.GracefulRestart || e.hop.IsValid() {
		return nil
	}
	p := apiPeer(e.settings)
	p.Conf.NeighborAddress, p.Conf.AdminDown = absent, true
	if err := e.gobgp.AddPeer(context.Background(), &api.AddPeerRequest{Peer: p}); err != nil {
		return fmt.Errorf("add the peer that defers: %w", err)
	}
	e.defers = true
	return nil
}

// endDeferral has later sessions begin at once: what the router said stays known.
func (e *engine) endDeferral() error {
	if !e.defers || !e.heard {
		return nil
	}
	e.defers = false
	if err := e.gobgp.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: absent}); err != nil {
		return fmt.Errorf("delete the peer that defers: %w", err)
	}
	return nil
}
