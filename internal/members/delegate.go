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
	hasChanged := string(m.ownMeta) != string(meta)
	m.ownMeta = meta
	list := m.list
	m.mu.Unlock()

	if list != nil && hasChanged {
		// UpdateNode queues it for gossip before it begins to wait, which is not needed.
		_ = list.UpdateNode(time.Nanosecond)
	}
}

// metadata is what a member sent last.
type metadata struct {
	lb.Member
	// expectedAt is when the member was last alive, or the cluster had its speaker.
	expectedAt time.Time
}

// metadataLifetime is how long the metadata of a member is kept after its speaker is gone from the cluster: longer than
// a new speaker takes to start, and than its goodbye is useful.
const metadataLifetime = 5 * time.Minute

// Metadata returns the last metadata of each member, this one included. Dead members keep theirs while the cluster has
// their speakers, and for metadataLifetime more: their frames are still recognised as a speaker's. As long as nothing
// changes it returns the same map. Do not modify it.
func (m *Members) Metadata() map[string]lb.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.published == nil {
		m.published = make(map[string]lb.Member, len(m.metadata))
		for name, d := range m.metadata {
			m.published[name] = d.Member
		}
	}

	return m.published
}

// pruneMetadata removes the metadata of members that were gone for metadataLifetime, and reports whether there were
// any: another machine may have their MACs by then.
func (m *Members) pruneMetadata(at time.Time) (hasPruned bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, d := range m.metadata {
		_, isAlive := m.addresses[name]
		_, isExpected := m.speakers[name]
		switch {
		case isAlive || isExpected:
			d.expectedAt = at
			m.metadata[name] = d
		case at.Sub(d.expectedAt) >= metadataLifetime:
			delete(m.metadata, name)
			m.published = nil
			hasPruned = true
		}
	}

	return hasPruned
}

// recordMember records the address and the metadata of a living member.
func (m *Members) recordMember(n *memberlist.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := netip.AddrFromSlice(n.Addr); ok {
		m.addresses[n.Name] = a.Unmap()
	}

	if len(n.Meta) == 0 {
		// It has started again and not sent any yet.
		if before, isKnown := m.metadata[n.Name]; isKnown {
			before.Stopping = false
			m.setMetadata(n.Name, before)
		}
		return
	}

	member, err := decodeMember(n.Meta)
	if err != nil {
		m.config.Log.Debug("metadata of a member is unreadable", "member", n.Name, "error", err)
		return
	}

	m.setMetadata(n.Name, metadata{Member: member, expectedAt: time.Now()})
}

// setMetadata replaces the metadata of a member. The caller holds mu.
func (m *Members) setMetadata(name string, d metadata) {
	m.metadata[name] = d
	m.published = nil
}

// delegate gives memberlist this member's metadata, and receives messages of other members.
type delegate struct{ m *Members }

// NodeMeta implements memberlist.Delegate.
func (d delegate) NodeMeta(int) []byte {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return d.m.ownMeta
}

// NotifyMsg implements memberlist.Delegate.
func (d delegate) NotifyMsg(message []byte) { d.m.receive(message) }

// GetBroadcasts implements memberlist.Delegate.
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (delegate) MergeRemoteState([]byte, bool) {}
