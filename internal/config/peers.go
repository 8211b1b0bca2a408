package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compilePeers returns the peers by name. Conflicts are found node by node: a
// peer is unusable on the nodes where it conflicts, and in force on all others.
func compilePeers(r *report, objects []*v1beta1.BGPPeer, secrets secrets, nodes map[string]lb.Node) []lb.Peer {
	var peers []lb.Peer
	names := slices.Sorted(maps.Keys(nodes))
	older := map[string][]lb.Peer{}
	for _, o := range oldestFirst(objects) {
		object := lb.Object{Kind: KindPeer, Name: o.Name}
		p, err := compilePeer(r, object, o.Spec, secrets)
		if err != nil {
			reason := lb.InvalidPeer
			if errors.As(err, &errPassword{}) {
				reason = lb.PasswordMissing
			}
			r.fault(object, reason, "not used: %v", err)
			continue
		}
		where := map[conflict][]string{}
		for _, name := range names {
			node := nodes[name]
			if len(p.NodeSelectors) > 0 && !lb.MatchesAny(p.NodeSelectors, node.Labels) {
				continue
			}
			if c, found := findConflict(p, node, older[name]); found {
				where[c] = append(where[c], name)
				continue
			}
			older[name] = append(older[name], p)
		}
		p.Unusable = unusable(where)
		for c, on := range where {
			r.fault(object, c.reason, "not used on %s: %s", lb.SomeOf(on), c.why)
		}
		peers = append(peers, p)
	}
	slices.SortFunc(peers, func(a, b lb.Peer) int { return cmp.Compare(a.Name, b.Name) })
	return peers
}

// Selects reports whether a peer is to have a session with a node of these labels, whatever else is wrong with it.
func Selects(p *v1beta1.BGPPeer, labels map[string]string) bool {
	selectors := compileSelectors(&report{}, lb.Object{}, "", p.Spec.NodeSelectors)
	return len(selectors) == 0 || lb.MatchesAny(selectors, labels)
}

// conflict is why a peer cannot be used on a node.
type conflict struct {
	reason lb.Reason
	why    string
}

// findConflict returns how a peer conflicts with the older ones on a node, if it does.
func findConflict(p lb.Peer, node lb.Node, older []lb.Peer) (conflict, bool) {
	if slices.Contains(node.Addresses, p.Address) {
		return conflict{lb.PeerIsSelf, fmt.Sprintf("peerAddress %s is that node's own: write the router's, or keep the node out by nodeSelectors", p.Address)}, true
	}
	for _, other := range older {
		switch {
		case other.Address == p.Address && other.Interface == p.Interface:
			// Even with another port: a speaker identifies sessions by the router's address alone.
			return conflict{lb.DuplicatePeer, fmt.Sprintf("BGPPeer %q is older and has %s there: remove one of the two, or give them disjoint nodeSelectors", other.Name, whereTo(p))}, true
		case other.RouterID.IsValid() && p.RouterID.IsValid() && other.RouterID != p.RouterID:
			return conflict{lb.ConflictingRouterID, fmt.Sprintf("BGPPeer %q is older and gives routerID %s there: a node has one, write the same", other.Name, other.RouterID)}, true
		}
	}
	return conflict{}, false
}

// whereTo names the field that says where the router is.
func whereTo(p lb.Peer) string {
	if p.Interface != "" {
		return "interface " + p.Interface
	}
	return "peerAddress " + p.Address.String()
}

func unusable(where map[conflict][]string) map[string]lb.Reason {
	var out map[string]lb.Reason
	for c, nodes := range where {
		for _, node := range nodes {
			if out == nil {
				out = map[string]lb.Reason{}
			}
			out[node] = c.reason
		}
	}
	return out
}
