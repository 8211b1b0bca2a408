package members

import (
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// SetSelf is what this member tells the others of itself from now on.
func (m *Members) SetSelf(self lb.Member) {
	meta := encodeMember(self, memberlist.MetaMaxSize)
	m.mu.Lock()
	changed := string(m.meta) != string(meta)
	m.meta = meta
	list := m.list
	m.mu.Unlock()
	if list != nil && changed {
		// It is queued for gossip before the wait begins, which nobody needs.
		_ = list.UpdateNode(time.Nanosecond)
	}
}

// toldTime is how long what a member told is kept after its speaker is gone from the cluster: longer than
// a new one takes to come, and than its goodbye is of use to anybody.
const keepTime = 5 * time.Minute

// Told returns what each member told of itself last, this one included. Members
// that died stand there too, while the cluster has their speakers and for toldTime
// more: their frames are still known for a speaker's.
func (m *Members) Metadata() map[string]lb.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	told := make(map[string]lb.Member, len(m.metadata))
	for name, member := range m.metadata {
		told[name] = member
	}
	return told
}

// forget drops what matters of the living only.
func (m *Members) forget(n *memberlist.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.addresses, n.Name)
}

// forgetUnknown drops what those told who were gone for toldTime, and reports whether there were any: their machines
// may be anything by now.
func (m *Members) forgetGone(now time.Time) (forgot bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.metadata {
		_, living := m.addresses[name]
		_, expected := m.join[name]
		since, unknown := m.goneSince[name]
		switch {
		case living || expected:
			delete(m.goneSince, name)
		case !unknown:
			m.goneSince[name] = now
		case now.Sub(since) >= keepTime:
			delete(m.metadata, name)
			delete(m.goneSince, name)
			forgot = true
		}
	}
	return forgot
}

func (m *Members) update(n *memberlist.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := netip.AddrFromSlice(n.Addr); ok {
		m.addresses[n.Name] = a.Unmap()
	}
	if len(n.Meta) == 0 {
		// It has begun anew and not said anything yet.
		if before, known := m.metadata[n.Name]; known {
			before.Stopping = false
			m.metadata[n.Name] = before
		}
		return
	}
	member, err := decodeMember(n.Meta)
	if err != nil {
		m.config.Log.Debug("member is not understood", "member", n.Name, "error", err)
		return
	}
	m.metadata[n.Name] = member
}

// delegate gives memberlist our metadata, and has no messages of its own.
type delegate struct{ m *Members }

// NodeMeta implements memberlist.Delegate.
func (d delegate) NodeMeta(int) []byte {
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return d.m.meta
}

// NotifyMsg implements memberlist.Delegate.
func (delegate) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (delegate) MergeRemoteState([]byte, bool) {}
