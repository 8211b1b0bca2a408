package liveness

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// wireTime is how long answers on the wire may take.
	wireTime = 30 * time.Millisecond
	// maxAsked bounds the addresses that a node is asked for on each link, and maxForeign the foreign machines that
	// are asked beside it: some of them only claim to be there.
	maxAsked   = 2
	maxForeign = 8
)

// Asker puts questions to machines on a link: layer2.Responder.
type Asker interface {
	Ask(ctx context.Context, questions []lb.Question, within time.Duration) []int
	Foreign(linkName string, n int) []lb.Question
}

// wire asks the speaker of a node that fell silent whether it still answers for what it announces (lb.Question), and
// machines that are no speakers whether this node's link works at all: these by ARP and Neighbor Discovery at their
// own MACs (RFC 1122 section 2.3.2.1, RFC 4861 section 7.3). So is a node whose echo did not get through before.
type wire struct {
	config Config
	now    func() time.Time

	mu sync.Mutex
	// own is this node's address that heartbeats use: the link that carries it is the one that matters.
	own netip.Addr
	// members are the speakers' metadata, announced what each node announces, or what it did
	// when it announced anything.
	members   map[string]lb.Member
	announced map[string]lb.Map[netip.Addr, struct{}]
	// owners are what was set last, and owns has the addresses of each.
	owners lb.Map[netip.Addr, string]
	owns   map[string]lb.Map[netip.Addr, struct{}]
	// heard has those whose heartbeats arrive.
	heard map[string]bool
	// trials are those on the link of the heartbeats, trialsElsewhere those on other links.
	trials, trialsElsewhere map[string]trial
	// answeredAt is when the foreign machines that answered lately did so last.
	answeredAt map[lb.Question]time.Time
	// worksAt is when a foreign machine on the link of the heartbeats answered while a node was silent, zero if none
	// did when they were asked last.
	worksAt time.Time
}

const (
	// foreignInterval is how often foreign machines are asked while all is well. As long as none answers, they are
	// asked every lookInterval. If none answered for foreignTime none is there, and silence shows nothing.
	lookInterval    = time.Second
	foreignInterval = 10 * time.Second
	foreignTime     = 30 * time.Second
)

// newWire returns a wire that knows of no node yet.
func newWire(c Config) *wire {
	return &wire{
		config: c, now: time.Now,
		announced: map[string]lb.Map[netip.Addr, struct{}]{}, owns: map[string]lb.Map[netip.Addr, struct{}]{},
		trials: map[string]trial{}, trialsElsewhere: map[string]trial{}, answeredAt: map[lb.Question]time.Time{},
	}
}

// set takes over the speakers' metadata, which of them are heard, which node announces each address by layer 2, and the
// address of this node that heartbeats use.
func (w *wire) set(
	members map[string]lb.Member,
	heard map[string]bool,
	owners lb.Map[netip.Addr, string],
	own netip.Addr,
) {
	w.mu.Lock()
	same := lb.SameMap(members, w.members) && maps.Equal(heard, w.heard) && w.owners.Same(owners) && own == w.own
	w.mu.Unlock()
	if same {
		return // as mostly: there may be a thousand of them
	}
	defer w.reportEchoes(w.withoutEcho())
	w.mu.Lock()
	defer w.mu.Unlock()
	for node := range heard {
		if !w.heard[node] {
			// It may be another run.
			w.trials[node] = trial{echoes: w.trials[node].echoes}
			w.trialsElsewhere[node] = trial{echoes: w.trialsElsewhere[node].echoes}
		}
	}
	moved := map[string][]netip.Addr{}
	w.owners.Changes(owners, func(a netip.Addr, old, new string, _, _ bool) {
		moved[old], moved[new] = append(moved[old], a), append(moved[new], a)
	})
	delete(moved, "")
	w.owners = owners
	for node, addrs := range moved {
		w.owns[node] = w.owns[node].With(
			slices.Values(addrs),
			func(a netip.Addr) (v struct{}, has bool) { return v, owners.Of(a) == node },
		)
		if w.owns[node].Len() == 0 {
			delete(w.owns, node)
		}
	}
	w.members, w.heard, w.own = members, heard, own
	maps.DeleteFunc(
		w.announced,
		func(node string, _ lb.Map[netip.Addr, struct{}]) bool { _, known := members[node]; return !known },
	)
	for _, trials := range []map[string]trial{w.trials, w.trialsElsewhere} {
		maps.DeleteFunc(trials, func(node string, _ trial) bool { _, known := members[node]; return !known })
	}
	maps.Copy(w.announced, w.owns)
}

// run asks foreign machines and speakers from time to time until ctx ends, so that it is known which of them answer
// when it matters.
func (w *wire) run(ctx context.Context) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		for _, l := range w.config.Links() {
			if w.carriesHeartbeats(l) && w.foreignDue() {
				asked := w.config.Asker.Foreign(l.Name, maxForeign)
				w.foreign(asked, w.config.Asker.Ask(ctx, asked, wireTime))
			}
		}
		w.tryEchoes(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *wire) foreignDue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.answeredAt {
		if w.now().Sub(at) < foreignInterval {
			return false
		}
	}
	return true
}

// ask asks about one node.
func (w *wire) ask(node string) detect.WireAnswer {
	w.mu.Lock()
	addresses, echoed := slices.Collect(w.announced[node].Keys()), w.trials[node].echoes
	echoedElsewhere := w.trialsElsewhere[node].echoes
	w.mu.Unlock()

	q := w.questions(node, addresses)
	asked := echoes(q.own)
	if !echoed {
		asked = append(asked, q.own...)
	}
	all := slices.Concat(asked, q.foreign, q.elsewhere, q.hearing, q.notHearing, q.foreignElsewhere)
	counts := w.config.Asker.Ask(context.Background(), all, wireTime)
	// take returns the counts of the next questions, in the order above.
	take := func(questions []lb.Question) []int {
		taken := counts[:len(questions)]
		counts = counts[len(questions):]
		return taken
	}

	var out detect.WireAnswer
	out.Node = anyOf(take(asked))
	out.Foreign = w.foreign(q.foreign, take(q.foreign))
	out.Elsewhere = anyOf(take(q.elsewhere))
	out.Hears = anyOf(take(q.hearing)) == detect.Answered
	out.HearsNone = anyOf(take(q.notHearing)) == detect.Answered
	out.ForeignElsewhere = allOf(take(q.foreignElsewhere))
	if out.Elsewhere == detect.Unanswered && !echoedElsewhere {
		out.Elsewhere = detect.NotAsked // echoes may not get through there
	}
	w.noteForeign(out.Foreign)
	return out
}

// noteForeign notes whether a foreign machine on the link of the heartbeats answers at this moment.
func (w *wire) noteForeign(answer detect.WireReply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.worksAt = time.Time{}
	if answer == detect.Answered {
		w.worksAt = w.now()
	}
}

// hearsForeign reports whether a foreign machine on the link of the heartbeats answered when a silent node was asked
// for, at most a second ago.
func (w *wire) hearsForeign() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.worksAt.IsZero() && w.now().Sub(w.worksAt) < time.Second
}

// foreign returns what the answers of foreign machines show. The silence of one that did not answer lately shows
// nothing.
func (w *wire) foreign(asked []lb.Question, counts []int) detect.WireReply {
	out := allOf(counts)
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.answeredAt, func(_ lb.Question, at time.Time) bool { return w.now().Sub(at) > foreignTime })
	answered := false
	for i, q := range asked {
		if counts[i] > 0 {
			w.answeredAt[q] = w.now()
		}
		_, lately := w.answeredAt[q]
		answered = answered || lately
	}
	if out == detect.Unanswered && !answered {
		return detect.NotAsked
	}
	return out
}

// questions are what is asked about a node.
type questions struct {
	// own go to the node about what it announces, foreign to machines that are no speakers: on the link of the
	// heartbeats.
	own, foreign []lb.Question
	// elsewhere are echoes on the other links that are shared, where both speakers listen: whether the speaker runs.
	// hearing and notHearing are further ones: whether it hears another machine on the link of the heartbeats.
	elsewhere, hearing, notHearing []lb.Question
	// kernelElsewhere go to the kernel of the node on those links, foreignElsewhere to machines that are no speakers.
	kernelElsewhere, foreignElsewhere []lb.Question
}

// questions returns what to ask about a node that announced these addresses. Where it does not share the link of the
// heartbeats, it is asked about what it announces on all links that it shares.
func (w *wire) questions(node string, addresses []netip.Addr) (out questions) {
	w.mu.Lock()
	theirs := w.members[node].Links
	// Our own link may have lost its carrier.
	sharesPath := slices.ContainsFunc(theirs, func(t lb.Link) bool { return hasSubnetOf(t, w.own) })
	w.mu.Unlock()
	var others []lb.Question
	for _, l := range w.config.Links() {
		if !l.CanAnnounce() {
			continue
		}
		i := slices.IndexFunc(theirs, func(t lb.Link) bool { return shared(l, t) })
		if i < 0 {
			continue
		}
		peer := theirs[i]
		ask := func(a netip.Addr, echo bool) lb.Question {
			return lb.Question{Link: l.Name, MAC: peer.MAC, Address: a, Echo: echo}
		}
		var here []lb.Question
		for _, a := range of(addresses, peer) {
			here = append(here, ask(a, false))
		}
		foreign := w.config.Asker.Foreign(l.Name, maxForeign)
		if w.carriesHeartbeats(l) {
			out.own, out.foreign = here, foreign
			continue
		}
		others = append(others, here...)
		if !l.Usable() || !peer.Default {
			continue // a speaker listens there only while it announces something
		}
		out.elsewhere = append(out.elsewhere, ask(netip.IPv6Unspecified(), true))
		out.hearing = append(out.hearing, ask(lb.Hearing, true))
		out.notHearing = append(out.notHearing, ask(lb.NotHearing, true))
		for _, a := range peer.Addresses {
			out.kernelElsewhere = append(out.kernelElsewhere, ask(a, false))
		}
		out.foreignElsewhere = append(out.foreignElsewhere, foreign...)
	}
	if !sharesPath {
		return questions{own: others}
	}
	return out
}

func (w *wire) carriesHeartbeats(l lb.Interface) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.CanAnnounce() && slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Addr() == w.own })
}

// shared reports whether a link of ours and one of another node may be on one network: both have an address in one
// subnet, or both have none and the same name, such as the VLAN of clients. Only an answer there shows that they are.
func shared(ours lb.Interface, theirs lb.Link) bool {
	var subnets []netip.Prefix
	for _, p := range ours.Prefixes {
		if !p.Addr().IsLinkLocalUnicast() {
			subnets = append(subnets, subnet(p))
		}
	}
	if len(subnets) == 0 && len(theirs.Prefixes) == 0 {
		return ours.Name == theirs.Name
	}
	return slices.ContainsFunc(
		theirs.Prefixes,
		func(p netip.Prefix) bool { return slices.Contains(subnets, subnet(p)) },
	)
}

// hasSubnetOf reports whether the subnet of an address is on a link of another node.
func hasSubnetOf(l lb.Link, a netip.Addr) bool {
	return slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return subnet(p).Contains(a) })
}

// subnet returns the subnet of an address with its length. DHCPv6 gives addresses without one (RFC 8415 section
// 18.2.10.1): they count as in the /64 that IPv6 subnets have (RFC 4291 section 2.5.4).
func subnet(p netip.Prefix) netip.Prefix {
	if p.Addr().Is6() && p.IsSingleIP() {
		p = netip.PrefixFrom(p.Addr(), 64)
	}
	return p.Masked()
}

// of returns the addresses to ask for on a link: those of its own subnets first, which the node surely announces there.
func of(announced []netip.Addr, l lb.Link) []netip.Addr {
	within := func(a netip.Addr) bool {
		return slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	var out, others []netip.Addr
	for _, a := range announced {
		if len(out) == maxAsked {
			break
		}
		if within(a) {
			out = append(out, a)
		} else if len(others) < maxAsked {
			others = append(others, a)
		}
	}
	return append(out, others[:min(len(others), maxAsked-len(out))]...)
}

// minAnswers is how many of three questions must be answered.
const minAnswers = 2

// anyOf reports whether a question was answered well enough.
func anyOf(counts []int) detect.WireReply {
	out := detect.NotAsked
	for _, n := range counts {
		switch {
		case n >= minAnswers:
			return detect.Answered
		case n != lb.Unasked:
			out = detect.Unanswered
		}
	}
	return out
}

// allOf reports whether the machines that are there answered well enough, all together: where most frames are lost,
// one of many that does so is chance.
func allOf(counts []int) detect.WireReply {
	out, sum, answering := detect.NotAsked, 0, 0
	for _, n := range counts {
		if n == lb.Unasked {
			continue
		}
		out = detect.Unanswered
		sum += n
		answering += min(n, 1)
	}
	if answering > 0 && sum >= minAnswers*answering {
		out = detect.Answered
	}
	return out
}
