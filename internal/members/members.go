package members

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// maxJoins bounds the connections that a join opens concurrently.
	maxJoins = 16
	// joinInterval is how often the addresses of missing speakers are tried.
	joinInterval = time.Second
)

// Config of the membership of one node.
type Config struct {
	// Config of the heartbeats. Its NodeName must be the name of the Kubernetes node, its Keys have 16, 24 or 32 bytes
	// each (AES-GCM), and Changed is called after each change of the membership.
	heartbeat.Config
	// GossipPort is for TCP and UDP.
	GossipPort uint16
	// Owner answers questions about addresses; nil leaves them unanswered.
	Owner Owner
	// Admit bounds the streams of gossip. It returns a stream that counts until it is closed, or closes the stream and
	// returns false.
	Admit func(net.Conn) (net.Conn, bool)
}

// Members is this node's view of the living speakers.
type Members struct {
	// Heartbeat knows which nodes are alive.
	*heartbeat.Heartbeat
	config  Config
	keyring *memberlist.Keyring

	mu sync.Mutex
	// list is nil until gossip runs.
	list *memberlist.Memberlist
	// speakers are the addresses of the nodes that have a speaker, nil before SetSpeakers.
	speakers map[string]netip.Addr
	// hasJoined reports whether each of them was tried once.
	hasJoined bool
	// ownMeta is this member's encoded metadata, and metadata what each member sent last.
	ownMeta  []byte
	metadata map[string]metadata
	// published is the result of Metadata, nil after a change of metadata.
	published map[string]lb.Member
	// addresses are the living members', copied from events: memberlist changes its nodes while others read them.
	addresses map[string]netip.Addr
	// pending are the questions of this node that wait for an answer, by nonce.
	pending map[uint64]pendingQuestion
}

// New returns Members that Run starts. It returns an error if a key has a wrong length.
func New(c Config) (*Members, error) {
	keyring, err := memberlist.NewKeyring(c.Keys, c.Keys[0])
	if err != nil {
		return nil, fmt.Errorf("members' keys: %w", err)
	}

	heartbeats, err := heartbeat.New(c.Config)
	if err != nil {
		return nil, err
	}

	return &Members{
		Heartbeat: heartbeats,
		config:    c,
		keyring:   keyring,
		metadata:  map[string]metadata{},
		addresses: map[string]netip.Addr{},
		pending:   map[uint64]pendingQuestion{},
	}, nil
}

// SetSpeakers sets the addresses of the nodes that have a speaker; this node may be among them.
func (m *Members) SetSpeakers(addresses map[string]netip.Addr) {
	m.mu.Lock()
	isSame := m.speakers != nil && maps.Equal(m.speakers, addresses)
	if !isSame {
		m.speakers = maps.Clone(addresses)
	}
	m.mu.Unlock()

	if !isSame {
		m.setPeers()
	}
}

// setPeers sets the peers of the heartbeats.
func (m *Members) setPeers() {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A member's own address takes precedence over its pod's.
	all := maps.Clone(m.addresses)
	isTaken := map[netip.Addr]bool{}
	for _, a := range all {
		isTaken[a] = true
	}

	for name, a := range m.speakers {
		if _, isMember := all[name]; !isMember && !isTaken[a] {
			all[name] = a
		}
	}

	peers := make([]heartbeat.Peer, 0, len(all))
	for name, a := range all {
		_, hasGossip := m.addresses[name]
		peers = append(peers, heartbeat.Peer{Name: name, Address: a, Gossip: hasGossip})
	}

	slices.SortFunc(peers, func(a, b heartbeat.Peer) int { return cmp.Compare(a.Name, b.Name) })
	m.Heartbeat.Set(peers)
}

// Address returns the address by which the other members know this one.
func (m *Members) Address() netip.Addr { return m.config.Address }

// Joined reports whether the address of every speaker has been tried once. Before
// that this node knows only itself, and would announce every address.
func (m *Members) Joined() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hasJoined
}

// SetKeys replaces the keys: all are accepted from then on, and the first one encrypts what is sent. It returns an
// error if a key has a wrong length, and then may have added some of the keys.
func (m *Members) SetKeys(keys [][]byte) error {
	for _, k := range keys {
		if err := m.keyring.AddKey(k); err != nil {
			return fmt.Errorf("add a key: %w", err)
		}
	}

	err := m.keyring.UseKey(keys[0])
	// GetKeys returns the ring's own array, in which RemoveKey shifts.
	for _, old := range slices.Clone(m.keyring.GetKeys()) {
		if !slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, old) }) {
			err = errors.Join(err, m.keyring.RemoveKey(old))
		}
	}

	m.Heartbeat.SetKeys(keys)
	return err
}

// Run takes part in the membership until ctx is cancelled. Then it says goodbye,
// so that the others need not suspect this node first, and returns nil. It
// returns an error if it cannot listen.
func (m *Members) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.Heartbeat.Run(ctx) })
	group.Go(func() error { return m.gossip(ctx) })
	return group.Wait()
}

// gossip runs memberlist until ctx is cancelled.
func (m *Members) gossip(ctx context.Context) error {
	c := m.memberlistConfig()
	streams, err := newTransport(c.BindAddr, c.BindPort, c.Logger, m.config.Admit)
	if err != nil {
		return fmt.Errorf("listen for members on port %d: %w", m.config.GossipPort, err)
	}

	c.Transport = streams
	list, err := memberlist.Create(c)
	if err != nil {
		return fmt.Errorf("start membership on port %d: %w", m.config.GossipPort, err)
	}

	m.mu.Lock()
	m.list = list
	m.mu.Unlock()
	m.config.Changed()

	tick := time.NewTicker(joinInterval)
	defer tick.Stop()
	for {
		m.joinMissing(list)
		if m.pruneMetadata(time.Now()) {
			m.config.Changed()
		}

		select {
		case <-ctx.Done():
			return m.leave(list)
		case <-tick.C:
		}
	}
}

// leave waits until the goodbye has been sent or a second has passed.
func (m *Members) leave(list *memberlist.Memberlist) error {
	if err := list.Leave(time.Second); err != nil {
		m.config.Log.Warn("the goodbye did not reach the members: they suspect this node first", "error", err)
	}
	return list.Shutdown()
}

// joinMissing contacts each speaker's address that no living member has: a new speaker's, or
// an address beyond a healed partition. memberlist alone would find these again only after up to
// GossipToTheDeadTime.
func (m *Members) joinMissing(list *memberlist.Memberlist) {
	isKnown := map[netip.Addr]bool{}
	m.mu.Lock()
	for _, a := range m.addresses {
		isKnown[a] = true
	}
	speakers := m.speakers
	isFirst := !m.hasJoined
	m.mu.Unlock()

	var group errgroup.Group
	group.SetLimit(maxJoins)
	for _, a := range speakers {
		if isKnown[a] {
			continue
		}

		group.Go(func() error {
			// A failed join is the ordinary case of a dead node, and memberlist logs it.
			_, _ = list.Join([]string{netip.AddrPortFrom(a, m.config.GossipPort).String()})
			return nil
		})
	}
	_ = group.Wait()

	if isFirst && len(speakers) > 0 {
		m.mu.Lock()
		m.hasJoined = true
		m.mu.Unlock()
		m.config.Changed()
	}
}

// memberlistConfig returns memberlist's LAN profile: the death of a speaker whose heartbeats no node received is known
// after some 5 s.
func (m *Members) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = m.config.NodeName
	c.BindAddr = m.config.Address.String()
	c.BindPort = int(m.config.GossipPort)
	c.AdvertiseAddr = m.config.Address.String()
	c.AdvertisePort = int(m.config.GossipPort)
	c.Keyring = m.keyring
	// The label keeps another membership on the same port, MetalLB's for example, from merging with this one.
	c.Label = "holdfast"
	c.EnableCompression = false // for each packet it allocates 90 KiB
	c.TCPTimeout = time.Second
	// A node that comes back with another address (a new NIC) may take its name over at once.
	c.DeadNodeReclaimTime = time.Second
	c.Events = memberEvents{m}
	c.Delegate = delegate{m}
	// A failed probe of a dead node is ordinary work, each packet of a stranger is a line, and events logs joins and
	// leaves.
	c.Logger = slog.NewLogLogger(m.config.Log.Handler(), slog.LevelDebug)
	return c
}

// memberEvents turns memberlist's notifications into kicks and log lines.
type memberEvents struct{ m *Members }

// NotifyJoin implements memberlist.EventDelegate.
func (e memberEvents) NotifyJoin(n *memberlist.Node) {
	e.m.config.Log.Debug("gossip: member joined", "member", n.Name, "address", n.Addr)
	e.NotifyUpdate(n)
}

// NotifyLeave implements memberlist.EventDelegate.
func (e memberEvents) NotifyLeave(n *memberlist.Node) {
	e.m.config.Log.Debug("gossip: member left", "member", n.Name, "address", n.Addr)
	e.m.mu.Lock()
	delete(e.m.addresses, n.Name)
	e.m.mu.Unlock()

	e.m.setPeers()
	e.m.config.Changed()
}

// NotifyUpdate implements memberlist.EventDelegate.
func (e memberEvents) NotifyUpdate(n *memberlist.Node) {
	e.m.recordMember(n)
	e.m.setPeers()
	e.m.config.Changed()
}
