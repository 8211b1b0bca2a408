package detect

import (
	"slices"
	"time"
)

const (
	// heardTime is how long what was heard directly counts for a peer that does not send heartbeats to this node.
	heardTime = 3 * time.Second
	// orphanTime is how long at least gossip must have given up a peer that no node watches, and nothing been heard of
	// it. orphanProbes of its probes must have been missed too.
	orphanTime   = 10 * time.Second
	orphanProbes = 3
	// blockedTime is after what time heartbeats are blocked where gossip gets through, and the reverse.
	blockedTime = 10 * time.Second
	// verdictTime is longer than a verdict takes. A silence is published earlier only beside a verdict: those who
	// act on the View do so at once, and then not for a while.
	verdictTime = 200 * time.Millisecond
	// togetherTime is how long after a death others that fall silent do so with it: a partition takes many away, and
	// not all of them are given up in the same instant.
	togetherTime = time.Second
)

// View is what is known at one moment.
type View struct {
	// Members are all peers and this node itself.
	Members []Member
	// Epoch counts the times that this node did not run for so long that it may have been declared dead.
	Epoch uint64
	// Settled: it has run since for long enough to have heard of that.
	Settled bool
	// Realtime: the thread has real-time priority.
	Realtime bool
	// Alone: this node hears no other speaker, even if some still count as alive. HearsBadly: it hears them badly,
	// and is itself at fault.
	Alone, HearsBadly bool
	// LinkFails: when the wire was asked last, this node's own link did not work.
	LinkFails bool
	// PathFails: this node hears no other speaker, and neither do those that answer it on another link: the network
	// between the nodes fails.
	PathFails bool
}

// NodeSets is a View by the names of nodes.
type NodeSets struct {
	View
	// Alive has those whose speakers are running, this one included, and those in SpeakerDown.
	Alive map[string]bool
	// HeldDown are alive and were dead lately, SpeakerDown are nodes without their speakers: see Status.
	HeldDown, SpeakerDown map[string]bool
	// Left said goodbye, Dead did not; Silent are alive and not heard at this moment: see Member.
	Left, Dead, Silent map[string]bool
}

// Sets sorts the members by what they are.
func (v View) Sets() NodeSets {
	of := func(has func(Member) bool) map[string]bool {
		out := map[string]bool{}
		for _, m := range v.Members {
			if has(m) {
				out[m.Name] = true
			}
		}
		return out
	}
	with := func(s Status) map[string]bool { return of(func(m Member) bool { return m.Status == s }) }
	return NodeSets{
		View: v,
		Alive: of(func(m Member) bool {
			return m.Status.Living() ||
				m.Status == SpeakerDown
		}),
		HeldDown:    with(HoldDown),
		SpeakerDown: with(SpeakerDown),
		Left:        with(Left),
		Dead:        with(Dead),
		Silent:      of(func(m Member) bool { return m.Silent }),
	}
}

// Equal reports whether two Views are the same.
func (v *View) Equal(o *View) bool {
	return v.Epoch == o.Epoch && v.Settled == o.Settled && v.Realtime == o.Realtime &&
		v.Alone == o.Alone &&
		v.HearsBadly == o.HearsBadly &&
		v.LinkFails == o.LinkFails && v.PathFails == o.PathFails &&
		slices.Equal(v.Members, o.Members)
}

// Member is what is known of one node.
type Member struct {
	Name   string
	Status Status
	// Heard: heartbeats of it have come. Otherwise its status comes from gossip.
	Heard bool
	// Blocked: gossip hears it and heartbeats do not arrive, as when their port is blocked.
	Blocked bool
	// GossipBlocked: heartbeats arrive and gossip does not hear it, as when its port is blocked.
	GossipBlocked bool
	// Deaths counts how often it was declared dead lately, outside of a hold-down.
	Deaths int
	// Silent: it counts as alive, and this node does not hear it.
	Silent bool
}

// status weighs all evidence about a peer.
func (d *Detector) status(at time.Duration, p *peerState) Status {
	switch {
	case p.NodeClaim.Status == SpeakerDown && !p.gossip && at-p.claimedAt > SpeakerDownTime+orphanTime:
		return Dead // the watchers that would have declared it are gone
	case p.NodeClaim.Status > HoldDown:
		return p.NodeClaim.Status
	case p.lastHeard == 0 && p.NodeClaim.Status == Unknown && !p.gossip:
		return Unknown
	case d.orphaned(at, p):
		return Dead
	}
	return max(p.NodeClaim.Status, Alive)
}

// orphaned: gossip gave up a peer whose watchers may have died with it, and this node hears well enough
// to believe that.
func (d *Detector) orphaned(at time.Duration, p *peerState) bool {
	patience := orphanTime
	if !p.watched {
		// It sends this node nothing but probes, one in as many intervals as it has peers.
		patience = max(patience, orphanProbes*time.Duration(len(d.ring)+1)*d.timers.Interval)
	} else if p.suspicion == nil || at-p.suspicion.at <= orphanTime {
		return false
	}
	return !p.gossip && at-max(p.gossipSince, p.lastHeard, d.badUntil) > patience
}

// members returns what is known of every node, this one included, ordered by id.
func (d *Detector) members(at time.Duration, self string) []Member {
	out := make([]Member, 0, len(d.ring)+1)
	out = append(out, Member{Name: self, Heard: true, Status: d.own.Status, Deaths: int(d.own.Deaths)})
	recent := d.recentDeath(at)
	for _, p := range d.ring {
		s := d.status(at, p)
		out = append(out, Member{
			Name: p.name, Heard: p.lastHeard != 0, Status: s, Blocked: p.blocked(at, s), Deaths: int(p.Deaths),
			GossipBlocked: p.gossipBlocked(at),
			Silent:        s.Living() && p.suspicion != nil && (recent || at-p.suspicion.at > verdictTime),
		})
	}
	return out
}

// recentDeath: a node was given up a moment ago.
func (d *Detector) recentDeath(at time.Duration) bool {
	return slices.ContainsFunc(d.ring, func(p *peerState) bool {
		return p.NodeClaim.Status == Dead &&
			at-p.claimedAt < togetherTime
	})
}

// hearsNobody: no other speaker is heard, and no verdict is about to explain that.
func (d *Detector) hearsNobody(at time.Duration) bool {
	last := time.Duration(0)
	for _, p := range d.ring {
		last = max(last, p.lastHeard+p.hold)
	}
	return at >= last && (d.recentDeath(at) || at-last > verdictTime)
}

// blocked: gossip hears a node, and for longer than either needs no heartbeat of it has come.
func (p *peerState) blocked(at time.Duration, s Status) bool {
	return p.gossip && (p.lastHeard == 0 || p.watched || s == Dead) && at-max(p.gossipSince, p.lastHeard) > blockedTime
}

// gossipBlocked: heartbeats of a node arrive at this moment, and gossip has not heard it for longer than it needs.
func (p *peerState) gossipBlocked(at time.Duration) bool {
	arrive := p.watched && p.lastHeard != 0 && at-p.lastHeard <= p.hold
	return arrive && !p.gossip && at-p.gossipSince > blockedTime
}

// settled: enough time has passed since this node ran again to hear what others declared about it.
func (d *Detector) settled(at time.Duration) bool { return at >= d.lapsedAt+2*d.timers.Interval }

// View returns what is known at now.
func (d *Detector) View(at time.Duration) View {
	return View{
		Members:    d.members(at, d.name),
		Epoch:      d.epoch,
		Settled:    d.settled(at),
		Realtime:   d.realtime,
		Alone:      d.hearsNobody(at),
		HearsBadly: d.hearsBadly,
		LinkFails:  d.link.fails(),
		PathFails:  d.pathFails(at),
	}
}

// Version rises when the View changes by an event. By time alone it may change without that.
func (d *Detector) Version() uint64 { return d.version }

// Epoch returns View.Epoch.
func (d *Detector) Epoch() uint64 { return d.epoch }

// Hold returns how long others may hear nothing of this node, as it tells them.
func (d *Detector) Hold() time.Duration { return d.hold }

// HearsSome reports whether this node heard another one well when it sent its last heartbeats.
func (d *Detector) HearsSome() bool { return d.hearsSome }

// Lateness returns how late the latest heartbeat of the last one to two minutes was.
func (d *Detector) Lateness() time.Duration { return d.lateness.worst() }

// Stats returns the counts so far.
func (d *Detector) Stats() Stats { return d.stats }
