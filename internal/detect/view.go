package detect

import (
	"slices"
	"time"
)

const (
	// heardTime is how long a packet counts as a sign of life of a peer that sends no heartbeats to this node.
	heardTime = 3 * time.Second
	// orphanTime is how long a peer that no node watches must have been silent, and given up by gossip, until it is
	// dead. It must have missed orphanProbes probes too.
	orphanTime   = 10 * time.Second
	orphanProbes = 3
	// blockedTime is how long heartbeats must be missing where gossip gets through, or the reverse, to count as
	// blocked.
	blockedTime = 10 * time.Second
	// verdictTime is longer than a verdict takes. A silence is published earlier only beside a verdict: a reader of
	// the View acts on it at once, and then not for a while.
	verdictTime = 200 * time.Millisecond
	// togetherTime is how long after a death the silence of other nodes counts as part of it: a partition takes many
	// nodes away, and not all of them are given up in the same instant.
	togetherTime = time.Second
)

// Member is what is known about one node.
type Member struct {
	Name   string
	Status Status
	// Heard reports whether heartbeats of the node have come. Without them its status comes from gossip.
	Heard bool
	// Blocked reports whether heartbeats of the node do not arrive as datagrams, as when their port is blocked, though
	// gossip hears the node or frames arrive. ByFrames reports whether frames do.
	Blocked, ByFrames bool
	// GossipBlocked reports whether heartbeats arrive and gossip does not hear the node, as when its port is blocked.
	GossipBlocked bool
	// Deaths counts how often the node was declared dead recently, outside of a hold-down.
	Deaths int
	// Silent reports whether the node counts as alive and this node does not hear it.
	Silent bool
}

// View is what is known at one moment.
type View struct {
	// Members are all peers and this node itself.
	Members []Member
	// Epoch counts how often this node did not run for so long that others may have declared it dead.
	Epoch uint64
	// Settled reports whether this node has run for long enough since then to have heard about it.
	Settled bool
	// Realtime reports whether the caller has real-time priority.
	Realtime bool
	// Alone reports whether this node hears no other speaker, even if some still count as alive.
	Alone bool
	// HearsBadly reports whether this node hears the others badly and is faulty itself.
	HearsBadly bool
	// GivenUp reports whether others consider this node dead and do not hear that it is not. They have its addresses.
	GivenUp bool
	// LinkFails reports whether this node's own link did not work when the wire was last asked.
	LinkFails bool
	// PathFails reports whether this node hears no other speaker, and neither do the nodes that answer it on another
	// link: the network between the nodes fails.
	PathFails bool
	// Links are the other links, by name. A Detector leaves them to its caller.
	Links []LinkView
}

// NodeSets is a View with its members sorted into sets of node names.
type NodeSets struct {
	View
	// Alive has the nodes whose speakers are running, this one included, and the nodes in SpeakerDown.
	Alive map[string]bool
	// HeldDown nodes are alive and were dead recently. SpeakerDown nodes are without their speakers: see Status.
	HeldDown, SpeakerDown map[string]bool
	// Left nodes said goodbye, and Dead nodes did not. Silent nodes are alive and not heard at this moment: see
	// Member.
	Left, Dead, Silent map[string]bool
}

// Sets sorts the members into sets.
func (v View) Sets() NodeSets {
	sets := NodeSets{
		View:        v,
		Alive:       map[string]bool{},
		HeldDown:    map[string]bool{},
		SpeakerDown: map[string]bool{},
		Left:        map[string]bool{},
		Dead:        map[string]bool{},
		Silent:      map[string]bool{},
	}
	for _, m := range v.Members {
		sets.add(m)
	}

	return sets
}

// add adds a member to its sets.
func (s *NodeSets) add(m Member) {
	if m.Silent {
		s.Silent[m.Name] = true
	}

	switch m.Status {
	case Alive:
		s.Alive[m.Name] = true
	case HoldDown:
		s.Alive[m.Name] = true
		s.HeldDown[m.Name] = true
	case SpeakerDown:
		s.Alive[m.Name] = true
		s.SpeakerDown[m.Name] = true
	case Dead:
		s.Dead[m.Name] = true
	case Left:
		s.Left[m.Name] = true
	}
}

// Equal reports whether two Views are the same.
func (v *View) Equal(o *View) bool {
	return v.Epoch == o.Epoch &&
		v.Settled == o.Settled &&
		v.Realtime == o.Realtime &&
		v.Alone == o.Alone &&
		v.HearsBadly == o.HearsBadly &&
		v.GivenUp == o.GivenUp &&
		v.LinkFails == o.LinkFails &&
		v.PathFails == o.PathFails &&
		slices.EqualFunc(v.Links, o.Links, LinkView.Equal) &&
		slices.Equal(v.Members, o.Members)
}

// View returns what is known.
func (d *Detector) View(at time.Duration) View {
	return View{
		Members:    d.members(at),
		Epoch:      d.epoch,
		Settled:    d.isSettled(at),
		Realtime:   d.realtime,
		Alone:      d.hearsNoNode(at),
		HearsBadly: d.hearsBadly,
		GivenUp:    d.isGivenUp(at),
		LinkFails:  d.link.hasFailed(),
		PathFails:  d.pathFails(at),
	}
}

// members returns what is known about every node: this one first, the others ordered by id.
func (d *Detector) members(at time.Duration) []Member {
	own := Member{
		Name:   d.name,
		Status: d.own.Status,
		Heard:  true,
		Deaths: int(d.own.Deaths),
	}
	out := make([]Member, 0, len(d.ring)+1)
	out = append(out, own)
	hasRecentDeath := d.hasRecentDeath(at)
	for _, p := range d.ring {
		status := d.status(at, p)
		isBlocked := p.isBlocked(at, status)
		isSuspect := p.suspicion != nil
		isSilent := isSuspect && (hasRecentDeath || at-p.suspicion.startedAt > verdictTime)
		isSilent = isSilent || d.isOnLinksAlone(at, p)
		member := Member{
			Name:          p.name,
			Status:        status,
			Heard:         p.lastHeard != 0,
			Blocked:       isBlocked,
			ByFrames:      isBlocked && p.isByFrames(at),
			GossipBlocked: p.isGossipBlocked(at),
			Deaths:        int(p.Deaths),
			Silent:        status.Living() && isSilent,
		}
		out = append(out, member)
	}

	return out
}

// status weighs all evidence about a peer.
func (d *Detector) status(at time.Duration, p *peerState) Status {
	isKnownElsewhere := p.gossip || d.onLinks(p).Living()
	claimAge := at - p.claimedAt
	switch {
	case p.Status == SpeakerDown && !p.gossip && claimAge > SpeakerDownTime+orphanTime:
		return Dead // the watchers that would have declared it are gone
	case p.Status > HoldDown:
		return p.Status
	case p.lastHeard == 0 && p.Status == Unknown && !isKnownElsewhere:
		return Unknown
	case !isKnownElsewhere && d.isOrphaned(at, p):
		return Dead
	}

	return max(p.Status, Alive)
}

// isOrphaned reports whether gossip gave up a peer for long whose watchers may have died with it, while this node hears
// well enough to rely on that.
func (d *Detector) isOrphaned(at time.Duration, p *peerState) bool {
	patience := orphanTime
	if !p.watched {
		patience = max(patience, d.probePatience())
	} else if p.suspicion == nil || at-p.suspicion.startedAt <= orphanTime {
		return false
	}
	lastSign := max(p.gossipSince, p.lastHeard, d.badUntil)

	return at-lastSign > patience
}

// probePatience is how long a peer may not be heard that sends this node nothing but probes, one in as many intervals
// as it has peers.
func (d *Detector) probePatience() time.Duration {
	probeInterval := time.Duration(len(d.ring)+1) * d.timers.Interval

	return orphanProbes * probeInterval
}

// isOnLinksAlone reports whether a peer counts as alive by frames alone: pods on its node may not be reached.
func (d *Detector) isOnLinksAlone(at time.Duration, p *peerState) bool {
	switch {
	case p.gossip:
		return false
	case p.isByFrames(at):
		return true
	}

	return d.onLinks(p).Living() && (p.lastHeard == 0 || d.isOrphaned(at, p))
}

// hasRecentDeath reports whether a node was given up a moment ago.
func (d *Detector) hasRecentDeath(at time.Duration) bool {
	return slices.ContainsFunc(d.ring, func(p *peerState) bool {
		return p.Status == Dead && at-p.claimedAt < togetherTime
	})
}

// hearsNoNode reports whether no other speaker is heard, and no verdict is about to explain that.
func (d *Detector) hearsNoNode(at time.Duration) bool {
	last := time.Duration(0)
	for _, p := range d.ring {
		last = max(last, p.lastHeard+p.hold)
	}

	if at < last {
		return false
	}

	return d.hasRecentDeath(at) || at-last > verdictTime
}

// isBlocked reports whether gossip or frames hear a peer, and no datagram of it has come for longer than any needs.
func (p *peerState) isBlocked(at time.Duration, s Status) bool {
	since := p.datagramAt
	switch {
	case p.isByFrames(at):
	case p.gossip:
		since = max(since, p.gossipSince)
	default:
		return false
	}
	isExpected := p.lastHeard == 0 || p.watched || s == Dead

	return isExpected && at-since > blockedTime
}

// isGossipBlocked reports whether heartbeats of a peer arrive at this moment, and gossip has not heard it for longer
// than it needs.
func (p *peerState) isGossipBlocked(at time.Duration) bool {
	if p.gossip || !p.watched || p.lastHeard == 0 {
		return false
	}
	arrive := at-p.lastHeard <= p.hold

	return arrive && at-p.gossipSince > blockedTime
}

// isSettled reports whether enough time has passed since this node ran again to hear what others declared about it.
func (d *Detector) isSettled(at time.Duration) bool {
	return at >= d.lapsedAt+2*d.timers.Interval
}
