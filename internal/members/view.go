package members

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

// View returns what is known now. It is shared: do not modify it.
func (m *Members) View() heartbeat.Nodes { return m.heartbeats.Nodes() }

// Address returns the address by which the other members know this one.
func (m *Members) Address() netip.Addr { return m.config.Address }

// Confirm says that a plan that was made from v is carried out:
// after a lapse this node may act again only then.
func (m *Members) Confirm(v heartbeat.Nodes) { m.heartbeats.Confirm(v.View) }

// Valid reports whether the last confirmation still holds; it is the Lease of the responder.
func (m *Members) Valid() bool { return m.heartbeats.Valid() }

// HeartbeatProcess returns the id of the heartbeat process. It returns an error while there is none.
func (m *Members) HeartbeatProcess() (int, error) { return m.heartbeats.Process() }

// Collect sends the metrics of heartbeats.
func (m *Members) Collect(ch chan<- prometheus.Metric) { m.heartbeats.Collect(ch) }

// setPeers sets the peers of the heartbeats.
func (m *Members) setPeers() {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A member's own address takes precedence over that of its pod.
	all := maps.Clone(m.addresses)
	taken := map[netip.Addr]bool{}
	for _, a := range all {
		taken[a] = true
	}
	for name, a := range m.join {
		if _, known := all[name]; !known && !taken[a] {
			all[name] = a
		}
	}
	peers := make([]heartbeat.Peer, 0, len(all))
	for name, a := range all {
		_, gossip := m.addresses[name]
		peers = append(peers, heartbeat.Peer{Name: name, Address: a, Gossip: gossip})
	}
	slices.SortFunc(peers, func(a, b heartbeat.Peer) int { return cmp.Compare(a.Name, b.Name) })
	m.heartbeats.Set(peers)
}
