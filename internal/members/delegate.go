package members

import (
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// SetSelf replaces the metadata that this member sends to the others.
func (m *Members) SetSelf(self lb.Member) {
	meta := encodeMember(self, memberlist.MetaMaxSize)
	m.mu.Lock()
	changed := string(m.meta) != string(meta)
	m.meta = meta
	list := m.list
	m.mu.Unlock()
	if list != nil && changed {
		// UpdateNode queues it for gossip before it begins to wait, which is not needed.
		_ = list.UpdateNode(time.Nanosecond)
	}
}

// metadata of a member, and when it last lived or the cluster had its speaker.
type metadata struct {
	lb.Member
	known time.Time
}

// keepTime is how long the metadata of a member is kept after its speaker is gone from the cluster: longer than
// a new speaker takes to come, and than its goodbye is useful.
const keepTime = 5 * time.Minute

// Metadata returns the last metadata of each member, this one included. It has members that
// died, too, while the cluster has their speakers and for keepTime more: their frames are
// still recognised as a speaker's. As long as none changed it is the same map, which must not be changed.
func (m *Members) Metadata() map[string]lb.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sent == nil {
		m.sent = make(map[string]lb.Member, len(m.metadata))
		for name, d := range m.metadata {
			m.sent[name] = d.Member
		}
	}
	return m.sent
}

// forgetGone drops the metadata of members that were gone for keepTime, and reports whether there were any: their
// machines may be anything by now.
func (m *Members) forgetGone(now time.Time) (forgot bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, d := range m.metadata {
		_, living := m.addresses[name]
		_, expected := m.join[name]
		switch {
		case living || expected:
			d.known = now
			m.metadata[name] = d
		case now.Sub(d.known) >= keepTime:
			delete(m.metadata, name)
			forgot, m.sent = true, nil
		}
	}
	return forgot
}

// update takes a living member's address and metadata over.
func (m *Members) update(n *memberlist.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := netip.AddrFromSlice(n.Addr); ok {
		m.addresses[n.Name] = a.Unmap()
	}
	if len(n.Meta) == 0 {
		// It has started again and not sent any yet.
		if before, known := m.metadata[n.Name]; known {
			before.Stopping = false
			m.metadata[n.Name], m.sent = before, nil
		}
		return
	}
	member, err := decodeMember(n.Meta)
	if err != nil {
		m.config.Log.Debug("metadata of a member is unreadable", "member", n.Name, "error", err)
		return
	}
	m.metadata[n.Name], m.sent = metadata{member, time.Now()}, nil
}

// delegate gives memberlist our metadata, and takes messages of other members.
type delegate struct{ m *Members }

// NodeMeta implements memberlist.Delegate.
func (d delegate) NodeMeta(int) []byte {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return d.m.meta
}

// NotifyMsg implements memberlist.Delegate.
func (d delegate) NotifyMsg(message []byte) { d.m.hear(message) }

// GetBroadcasts implements memberlist.Delegate.
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (delegate) MergeRemoteState([]byte, bool) {}
