package members

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

// View is what is known of the speakers at one moment, by the names of their nodes.
type View struct {
	heartbeat.View
	// Alive has those that are running, this one included, and those in SpeakerDown.
	Alive map[string]bool
	// HeldDown are alive and were dead lately, SpeakerDown are nodes without their speakers: see heartbeat.Status.
	HeldDown, SpeakerDown map[string]bool
	// Left said goodbye, Dead did not; Silent are alive and not heard at this moment: see heartbeat.Member.
	Left, Dead, Silent map[string]bool
}

// View returns what is known now.
func (m *Members) View() View {
	v := View{
		View: m.heartbeats.View(), Alive: map[string]bool{}, HeldDown: map[string]bool{}, SpeakerDown: map[string]bool{},
		Left: map[string]bool{}, Dead: map[string]bool{}, Silent: map[string]bool{},
	}
	for _, member := range v.Members {
		add := func(to map[string]bool, is bool) {
			if is {
				to[member.Name] = true
			}
		}
		s := member.Status
		add(v.Alive, s.Living() || s == heartbeat.SpeakerDown)
		add(v.HeldDown, s == heartbeat.HoldDown)
		add(v.SpeakerDown, s == heartbeat.SpeakerDown)
		add(v.Left, s == heartbeat.Left)
		add(v.Dead, s == heartbeat.Dead)
		add(v.Silent, member.Silent)
	}
	return v
}

// Address returns the address by which the other members know this one.
func (m *Members) Address() netip.Addr { return m.config.Address }

// Confirm says that a plan that was made from v is carried out:
// after a lapse this node may act again only then.
func (m *Members) Confirm(v View) { m.heartbeats.Confirm(v.View) }

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
