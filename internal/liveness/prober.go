package liveness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// kernelTime is how long a node's kernel has to answer. On a LAN it takes a millisecond.
	kernelTime = 150 * time.Millisecond
	// maxAsking bounds the nodes that are asked side by side.
	maxAsking = 64
)

// prober asks the kernels of the nodes whose speakers are not heard, and if it is cut off it reads what these wrote.
// From that it knows which nodes are silent, which are lost to this one, and to which it yields. Probe never waits for
// an answer.
type prober struct {
	config Config
	slots  chan struct{}

	mu sync.Mutex
	// known is what was set last, reach what follows, speakerDown the nodes that were in SpeakerDown before.
	known       Known
	reach       reachability
	speakerDown map[string]bool
	// serving are the nodes that matter to one that is cut off: with a speaker, or an endpoint that can serve.
	// published is what lost returns for them.
	serving, published map[string]bool
	// asking has the nodes that have not answered yet.
	asking map[string]bool
	// votes of other sides of a partition, and the result that was published. They are being read, or are due to be;
	// api: the API server answered the last read.
	votes        votes
	partition    lb.Partition
	reading, api bool
	votesDue     time.Time
}

func newProber(c Config) *prober {
	return &prober{
		config: c,
		slots:  make(chan struct{}, maxAsking),
		reach:  reachability{node: c.Node.Name, missed: peerHealth{}, others: peerHealth{}},
		asking: map[string]bool{},
		votes:  votes{},
	}
}

// set takes over what is known. Nodes that are not heard are in doubt at once.
func (p *prober) set(now time.Time, k Known) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = k
	p.update(now)
	p.speakerDown = k.View.SpeakerDown
	p.serving = nil
	if p.reach.cutOff() {
		p.serving = maps.Clone(p.reach.expected)
		for _, s := range k.Services {
			for _, node := range slices.Concat(s.ServingNodes(lb.IPv4), s.ServingNodes(lb.IPv6)) {
				p.serving[node] = true
			}
		}
	}
	p.published = p.reach.lost(now, p.serving)
	p.config.KickProbe()
}

// last returns what was set last.
func (p *prober) last() Known {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known
}

// Probe asks the kernels and reads the votes that are due. It returns when the next one is due, or a doubt ends.
func (p *prober) Probe(ctx context.Context) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.update(now)
	for node, addresses := range p.kernels(now) {
		p.asking[node] = true
		go p.ask(ctx, node, addresses)
	}
	p.readVotes(ctx, now)
	p.publish(now)
	return p.wait(now), nil
}

// publish takes over what is lost and to whom this node yields, and calls Changed if that is new.
func (p *prober) publish(now time.Time) {
	lost, before, next := p.reach.lost(now, p.serving), p.partition, lb.Partition{}
	if p.reach.cutOff() {
		missed, _ := p.reach.unheard()
		next = p.votes.partition(now, p.reach.node, p.reach.audible(), p.reach.view.LinkFails, missed, lost)
	}
	if maps.Equal(lost, p.published) && reflect.DeepEqual(before, next) {
		return
	}
	p.published, p.partition = lost, next
	switch {
	case slices.Equal(before.YieldsTo, next.YieldsTo):
	case len(next.YieldsTo) > 0:
		p.config.Log.Warn(
			"partitioned: this side yields to nodes that are running and do not hear it",
			"nodes",
			next.YieldsTo,
		)
	default:
		p.config.Log.Info("this side does not yield any more")
	}
	p.config.Changed()
}

// update works out reach from what is known now.
func (p *prober) update(now time.Time) {
	was := p.reach.cutOff()
	view := p.known.View
	p.reach.view, p.reach.api, p.reach.expected = view, p.api, map[string]bool{p.reach.node: true}
	missed := map[string]cause{}
	for node := range p.known.Speakers {
		p.reach.expected[node] = true
		switch {
		case node == p.reach.node || view.Alive[node]:
		case view.Left[node] || p.speakerDown[node]:
			missed[node] = explained
		case view.Dead[node]:
			missed[node] = unexplained
		default:
			missed[node] = notYet
		}
	}
	p.reach.missed.update(now, missed)
	var doubtful map[string]cause
	is := p.reach.cutOff()
	if is {
		doubtful = p.reach.doubtful(p.serving)
	}
	p.reach.others.update(now, doubtful)
	if is == was {
		return
	}
	heard, expected := p.reach.count()
	if is {
		p.config.Log.Warn(
			"cut off: addresses that only unreachable nodes can serve are not announced here",
			"heard",
			heard,
			"expected",
			expected,
		)
	} else {
		p.config.Log.Info("not cut off any more", "heard", heard, "expected", expected)
	}
}

// kernels returns the addresses of the nodes that are due.
func (p *prober) kernels(now time.Time) map[string][]netip.AddrPort {
	out := map[string][]netip.AddrPort{}
	if len(p.reach.missed)+len(p.reach.others) == 0 {
		return out
	}
	kernels := p.config.Cluster.Kernels(p.config.MembersPort)
	for _, nodes := range []peerHealth{p.reach.missed, p.reach.others} {
		for node, n := range nodes {
			if !p.asking[node] && !n.due().After(now) {
				out[node] = kernels[node]
			}
		}
	}
	return out
}

func (p *prober) ask(ctx context.Context, node string, addresses []netip.AddrPort) {
	p.slots <- struct{}{}
	answers := kernelAnswers(ctx, kernelTime, addresses...)
	<-p.slots
	if ctx.Err() != nil {
		return // there was no time to answer
	}
	p.mu.Lock()
	delete(p.asking, node)
	for _, nodes := range []peerHealth{p.reach.missed, p.reach.others} {
		if _, known := nodes[node]; known {
			nodes.record(time.Now(), node, answers)
		}
	}
	p.mu.Unlock()
	p.config.KickProbe()
	p.config.SilenceChanged()
}

// wait returns how long until a node is due again, or a doubt ends.
func (p *prober) wait(now time.Time) time.Duration {
	next := quietTime
	if p.reach.cutOff() && !p.reading {
		next = max(0, p.votesDue.Sub(now))
	}
	for _, nodes := range []peerHealth{p.reach.missed, p.reach.others} {
		for node, n := range nodes {
			if !p.asking[node] {
				next = min(next, n.due().Sub(now))
			}
			if ends := n.since.Add(doubtTime).Sub(now); n.answered && n.cause != explained && ends > 0 {
				next = min(next, ends)
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
	return p.reach.audible()
}

// cutOff returns which nodes are lost to this one and to which it yields, as lb.Here has them, and the Problem of being
// cut off. The caller holds mu.
func (p *prober) cutOff() (lost map[string]bool, partition lb.Partition, cutOff []lb.Problem) {
	if !p.reach.cutOff() {
		return nil, p.partition, nil
	}
	heard, expected := p.reach.count()
	return maps.Clone(
			p.published,
		), p.partition, []lb.Problem{
			{Object: p.config.Node, Reason: lb.CutOff, Message: fmt.Sprintf(
				"node %s hears %d of %d speakers and announces nothing that only these can serve: %s",
				p.reach.node, heard, expected, slices.Sorted(maps.Keys(p.published)))},
		}
}

// Silence returns what to write about the speakers that are not heard, with atOnce also about nodes of which only the
// speaker fell silent.
func (p *prober) Silence(atOnce bool) Silence {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, missed := time.Now(), p.reach.missed
	return Silence{
		Unreachable: missed.unreachable(),
		Quiet:       missed.quiet(now, atOnce),
		Complete:    missed.complete(),
		CutOff:      p.reach.cutOff(),
		LinkFails:   p.known.View.LinkFails && len(missed) > 0,
		missed:      len(missed),
		recent:      missed.recent(now),
	}
}

const (
	// kernelAttempts to each address, with kernelPause between their starts: the kernel itself
	// would repeat a lost SYN only after a second (RFC 6298 section 2.1).
	kernelAttempts = 3
	kernelPause    = 40 * time.Millisecond
)

// kernelAnswers reports whether the kernel of a node is alive, without the help of a program there: it refuses a TCP
// connection to a port without a listener, and accepts one to a program that hangs. Only a node that is off, or that
// the network does not reach, is silent. This separates the death of a speaker from the death of its node. The
// addresses are those of one node, and one that accepts, refuses or resets within the time is enough.
func kernelAnswers(ctx context.Context, within time.Duration, addresses ...netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tries := kernelAttempts * len(addresses)
	answers := make(chan bool, tries)
	for i := range kernelAttempts {
		for _, a := range addresses {
			time.AfterFunc(time.Duration(i)*kernelPause, func() { answers <- answered(ctx, a) })
		}
	}
	for range tries {
		if <-answers {
			return true
		}
	}
	return false
}

func answered(ctx context.Context, a netip.AddrPort) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.String())
	if err == nil {
		conn.Close()
		return true
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}
