package liveness

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// kernelTime is how long a node's kernel has to answer. On a LAN it takes a millisecond.
	kernelTime = 150 * time.Millisecond
	// maxAsking bounds the nodes that are asked concurrently.
	maxAsking = 64
)

// prober asks the kernels of the nodes whose speakers are not heard. If this node is cut off, it reads what they wrote.
// From that it knows which nodes are silent, which are lost to this node, and to which it yields. Probe never waits for
// an answer.
type prober struct {
	config Config
	slots  chan struct{}

	mu sync.Mutex
	// known is what was set last, and reach what follows from it.
	known Known
	reach reachability
	// formerSpeakerDown are the nodes whose speaker was down before known was set.
	formerSpeakerDown map[string]bool
	// serving are the nodes that matter to a node that is cut off: with a speaker, or an endpoint that can serve.
	// published are the lost nodes among them.
	serving, published map[string]bool
	// asking has the nodes that have not answered yet.
	asking map[string]bool
	reader voteReader
}

func newProber(c Config) *prober {
	return &prober{
		config: c,
		slots:  make(chan struct{}, maxAsking),
		reach:  reachability{node: c.Node.Name, missed: peerHealth{}, others: peerHealth{}},
		asking: map[string]bool{},
		reader: voteReader{votes: votesByNode{}},
	}
}

// set replaces what is known. Nodes that are not heard are in doubt at once.
func (p *prober) set(at time.Time, k Known) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = k
	p.update(at)
	p.formerSpeakerDown = k.View.SpeakerDown
	p.serving = nil
	if p.reach.isCutOff() {
		p.serving = servingNodes(p.reach.expected, k.Services)
	}

	p.published = p.reach.lostNodes(at, p.serving)
	p.config.KickProbe()
}

// servingNodes returns the nodes with a speaker and the nodes with endpoints that can serve.
func servingNodes(speakers map[string]bool, services []*lb.Service) map[string]bool {
	out := maps.Clone(speakers)
	for _, s := range services {
		for _, node := range slices.Concat(s.ServingNodes(lb.IPv4), s.ServingNodes(lb.IPv6)) {
			out[node] = true
		}
	}
	return out
}

// lastKnown returns what was set last.
func (p *prober) lastKnown() Known {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known
}

// Probe asks the kernels and reads the votes that are due. It returns how long until the next one is due, or a doubt
// ends. The error is always nil.
func (p *prober) Probe(ctx context.Context) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now()
	p.update(at)
	for node, addresses := range p.dueKernels(at) {
		p.asking[node] = true
		go p.ask(ctx, node, addresses)
	}

	p.readVotes(ctx, at)
	p.publish(at)

	return p.untilNext(at), nil
}

// publish takes over which nodes are lost and to which this node yields, and calls Changed if that is new.
func (p *prober) publish(at time.Time) {
	lost := p.reach.lostNodes(at, p.serving)
	before := p.reader.partition
	next := p.partition(at, lost)
	if maps.Equal(lost, p.published) && reflect.DeepEqual(before, next) {
		return
	}

	p.published = lost
	p.reader.partition = next
	switch {
	case slices.Equal(before.YieldsTo, next.YieldsTo):
	case len(next.YieldsTo) > 0:
		p.config.Log.Warn("partitioned: this side yields to nodes that are running and do not hear it",
			"nodes", next.YieldsTo)
	default:
		p.config.Log.Info("this side does not yield any more")
	}

	p.config.Changed()
}

// partition returns the result of the votes, which is empty unless this node is cut off.
func (p *prober) partition(at time.Time, lost map[string]bool) lb.Partition {
	if !p.reach.isCutOff() {
		return lb.Partition{}
	}

	missed, _ := p.reach.unheardNodes()
	return p.reader.votes.partition(at, side{
		self:      p.reach.node,
		alive:     p.reach.heardNodes(),
		linkFails: p.reach.view.LinkFails,
		missed:    missed,
		lost:      lost,
	})
}

// update derives reach from what is known.
func (p *prober) update(at time.Time) {
	wasCutOff := p.reach.isCutOff()
	p.reach.view = p.known.View
	p.reach.apiAnswers = p.reader.apiAnswers
	p.reach.expected = map[string]bool{p.reach.node: true}
	for node := range p.known.Speakers {
		p.reach.expected[node] = true
	}

	p.reach.missed.update(at, p.missedNodes())
	isCutOff := p.reach.isCutOff()
	var doubtful map[string]cause
	if isCutOff {
		doubtful = p.reach.doubtful(p.serving)
	}

	p.reach.others.update(at, doubtful)
	if isCutOff == wasCutOff {
		return
	}

	heard, expected := p.reach.count()
	if isCutOff {
		p.config.Log.Warn("cut off: addresses that only unreachable nodes can serve are not announced here",
			"heard", heard, "expected", expected)
	} else {
		p.config.Log.Info("not cut off any more", "heard", heard, "expected", expected)
	}
}

// missedNodes returns the nodes whose speakers do not count as alive, and why.
func (p *prober) missedNodes() map[string]cause {
	view := p.known.View
	missed := map[string]cause{}
	for node := range p.known.Speakers {
		switch {
		case node == p.reach.node || view.Alive[node]:
		case view.Left[node] || p.formerSpeakerDown[node]:
			missed[node] = explained
		case view.Dead[node]:
			missed[node] = unexplained
		default:
			missed[node] = neverHeard
		}
	}

	return missed
}

// dueKernels returns the addresses of the nodes that are to be asked.
func (p *prober) dueKernels(at time.Time) map[string][]netip.AddrPort {
	out := map[string][]netip.AddrPort{}
	if len(p.reach.missed)+len(p.reach.others) == 0 {
		return out
	}

	kernels := p.config.Cluster.Kernels(p.config.MembersPort)
	for _, nodes := range []peerHealth{p.reach.missed, p.reach.others} {
		for node, n := range nodes {
			if !p.asking[node] && !n.due().After(at) {
				out[node] = kernels[node]
			}
		}
	}

	return out
}

// ask asks the kernel of a node, and records its answer.
func (p *prober) ask(ctx context.Context, node string, addresses []netip.AddrPort) {
	p.slots <- struct{}{}
	hasAnswered := kernelAnswers(ctx, kernelTime, addresses...)
	<-p.slots
	if ctx.Err() != nil {
		return // there was no time to answer
	}

	p.mu.Lock()
	delete(p.asking, node)
	for _, nodes := range []peerHealth{p.reach.missed, p.reach.others} {
		if _, isKnown := nodes[node]; isKnown {
			nodes.record(time.Now(), node, hasAnswered)
		}
	}
	p.mu.Unlock()

	p.config.KickProbe()
	p.config.SilenceChanged()
}

// untilNext returns how long until a node is due again, or a doubt ends.
func (p *prober) untilNext(at time.Time) time.Duration {
	next := quietTime
	if p.reach.isCutOff() && !p.reader.isReading {
		next = max(0, p.reader.dueAt.Sub(at))
	}

	for _, nodes := range []peerHealth{p.reach.missed, p.reach.others} {
		for node, n := range nodes {
			if !p.asking[node] {
				next = min(next, n.due().Sub(at))
			}

			if ends, isInDoubt := n.doubtEnds(); isInDoubt && ends.After(at) {
				next = min(next, ends.Sub(at))
			}
		}
	}

	return max(time.Millisecond, next)
}

// Heard returns the nodes whose speakers are heard, this one included; nil before anything was set.
func (p *prober) Heard() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reach.view.Alive == nil {
		return nil
	}
	return p.reach.heardNodes()
}

// cutOffFrom returns which nodes are lost to this node, as lb.Here has them. The caller holds mu.
func (p *prober) cutOffFrom() map[string]bool {
	if !p.reach.isCutOff() {
		return nil
	}
	return maps.Clone(p.published)
}

// cutOffProblems returns the Problem of a node that is cut off. The caller holds mu.
func (p *prober) cutOffProblems() []lb.Problem {
	if !p.reach.isCutOff() {
		return nil
	}

	heard, expected := p.reach.count()
	message := fmt.Sprintf("node %s hears %d of %d speakers and announces nothing that only these can serve: %s",
		p.reach.node, heard, expected, slices.Sorted(maps.Keys(p.published)))

	return []lb.Problem{{Object: p.config.Node, Reason: lb.CutOff, Message: message}}
}

// Silence returns what to write about the speakers that are not heard. atOnce adds nodes of which only the speaker fell
// silent, before that has lasted.
func (p *prober) Silence(atOnce bool) Silence {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now()
	missed := p.reach.missed
	return Silence{
		Unreachable: missed.unreachable(),
		Quiet:       missed.quiet(at, atOnce),
		Complete:    missed.isComplete(),
		CutOff:      p.reach.isCutOff(),
		LinkFails:   p.known.View.LinkFails && len(missed) > 0,
		missedCount: len(missed),
		hasRecent:   missed.hasRecent(at),
	}
}
