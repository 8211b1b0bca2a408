package heartbeat

import (
	"slices"
	"time"
)

// Evidence says whose word a status rests on.
type Evidence string

// The grounds of a status.
const (
	// ByHeartbeat: heard by us, or claimed by who watches it.
	ByHeartbeat Evidence = "heartbeat"
	// ByGossip: heartbeats tell nothing, or are contradicted.
	ByGossip Evidence = "gossip"
)

const (
	// heardTime is how long what was heard directly counts for a peer that does not beat at us.
	heardTime = 3 * time.Second
	// overruleTime is after what time gossip that goes on hearing a node is believed more than a
	// death; gossip itself needs so long to notice one in a large cluster.
	overruleTime = 10 * time.Second
	// atOnce is how long after a death others that fall silent do so with it: not all that
	// a partition takes away is given up in the same instant.
	atOnce = time.Second
)

// Member is what is known of one node.
type Member struct {
	Name   string
	Status Status
	By     Evidence
	// Blocked: heartbeats and gossip contradict each other, as when one port is blocked.
	Blocked bool
	// Deaths counts how often it was declared dead lately.
	Deaths int
	// Incarnation is the number of its claim.
	Incarnation uint32
	// Silent: it counts as alive yet, and is not heard at a moment when others were given up.
	Silent bool
}

// status weighs all evidence about a peer.
func (d *detector) status(now time.Duration, p *peer) Status {
	s, _ := d.judge(now, p)
	return s
}

func (d *detector) judge(now time.Duration, p *peer) (Status, Evidence) {
	switch age := now - p.claimedAt; {
	case p.claim.status == Dead && p.gossip && age > overruleTime:
		return Alive, ByGossip
	case p.claim.status == Mute && !p.gossip && age > d.muteTime+overruleTime:
		return Dead, ByGossip // those who would have declared it are gone
	case p.claim.status > Held:
		return p.claim.status, ByHeartbeat
	}
	alive := max(p.claim.status, Alive)
	if p.lastHeard != 0 && (now-p.lastHeard < heardTime || p.suspicion != nil && !p.gossip) {
		return alive, ByHeartbeat
	}
	if p.gossip || p.gossipAt != 0 && now-p.gossipAt < heardTime {
		return alive, ByGossip
	}
	if p.lastHeard == 0 && p.claim.status == Unknown {
		return Unknown, ByGossip
	}
	return Dead, ByGossip
}

// members returns what is known of every node, this one included, ordered by id.
func (d *detector) members(now time.Duration, self string) []Member {
	out := make([]Member, 0, len(d.ring)+1)
	out = append(out, Member{
		Name: self, Status: d.own.status, By: ByHeartbeat, Deaths: int(d.own.deaths), Incarnation: d.own.number,
	})
	dying := slices.ContainsFunc(d.ring, func(p *peer) bool { return p.claim.status == Dead && now-p.claimedAt < atOnce })
	for _, p := range d.ring {
		s, by := d.judge(now, p)
		out = append(out, Member{
			Name: p.name, Status: s, By: by, Blocked: p.blocked(now, s), Deaths: int(p.claim.deaths), Incarnation: p.claim.number,
			Silent: dying && s.Living() && p.suspicion != nil,
		})
	}
	return out
}

// deafened: none of several nodes that should beat at us is heard, and one was given up for it.
func (d *detector) deafened(now time.Duration) bool {
	gaveUp := func(p *peer) bool { return p.private && p.claim.status == Dead }
	return slices.ContainsFunc(d.watching, gaveUp) && d.deaf(now)
}

// blocked: the two ways to hear of a living node have disagreed for longer than either needs.
func (p *peer) blocked(now time.Duration, s Status) bool {
	if !s.Living() || p.lastHeard == 0 || now-p.gossipSince < overruleTime {
		return false
	}
	return !p.gossip || p.watched && now-p.lastHeard > heardTime
}

// settled: enough time has passed since this node ran again to hear what became of it.
func (d *detector) settled(now time.Duration) bool { return now >= d.lapsedAt+d.interval }
