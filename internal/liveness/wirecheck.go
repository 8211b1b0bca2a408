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
	// maxAsked bounds the addresses that a node is asked for on each link.
	maxAsked = 2
	// maxForeign bounds the foreign machines that are asked with it: some of them only claim to be there.
	maxForeign = 8
	// pollInterval is how often foreign machines are asked until one answers.
	pollInterval = time.Second
	// foreignInterval is how often foreign machines are asked while one answers.
	foreignInterval = 10 * time.Second
	// foreignLifetime is how long an answer shows that a foreign machine is there. If none answered for that long,
	// silence shows nothing.
	foreignLifetime = 30 * time.Second
	// hearsForeignTime is how long the answer of a foreign machine shows that this node hears it.
	hearsForeignTime = time.Second
)

// Asker puts questions to machines on a link: layer2.Responder.
type Asker interface {
	Ask(ctx context.Context, questions []lb.Question, within time.Duration) []int
	Foreign(linkName string, n int) []lb.Question
}

// wireChecker asks the speaker of a node that fell silent whether it still answers for what it announces (lb.Question).
// It asks foreign machines whether this node's link works at all, by ARP and Neighbor Discovery at their own MACs (RFC
// 1122 section 2.3.2.1, RFC 4861 section 7.3). A node whose echo did not get through before is asked in that way too.
type wireChecker struct {
	config Config
	clock  func() time.Time

	mu sync.Mutex
	// ownAddress is this node's address that heartbeats use: only the link that carries it matters.
	ownAddress netip.Addr
	// members are the speakers' metadata.
	members map[string]lb.Member
	// announced is what each node announces, or what it did when it last announced anything.
	announced map[string]lb.Map[netip.Addr, struct{}]
	// owners are what was set last, and ownedBy has the addresses of each owner.
	owners  lb.Map[netip.Addr, string]
	ownedBy map[string]lb.Map[netip.Addr, struct{}]
	// heard has the nodes whose heartbeats arrive.
	heard map[string]bool
	// trials are the trials on the link of the heartbeats, trialsElsewhere the trials on other links.
	trials, trialsElsewhere map[string]echoTrial
	// answeredAt is when each foreign machine answered last, within foreignLifetime.
	answeredAt map[lb.Question]time.Time
	// foreignAnsweredAt is when a foreign machine on the link of the heartbeats answered while a node was silent, zero
	// if none did when they were last asked.
	foreignAnsweredAt time.Time
}

// newWireChecker returns a wireChecker that knows of no node yet.
func newWireChecker(c Config, clock func() time.Time) *wireChecker {
	return &wireChecker{
		config:          c,
		clock:           clock,
		announced:       map[string]lb.Map[netip.Addr, struct{}]{},
		ownedBy:         map[string]lb.Map[netip.Addr, struct{}]{},
		trials:          map[string]echoTrial{},
		trialsElsewhere: map[string]echoTrial{},
		answeredAt:      map[lb.Question]time.Time{},
	}
}

// set replaces the speakers' metadata, the nodes whose heartbeats arrive, the node that announces each address by layer
// 2, and the address of this node that heartbeats use.
func (w *wireChecker) set(
	members map[string]lb.Member,
	heard map[string]bool,
	owners lb.Map[netip.Addr, string],
	ownAddress netip.Addr,
) {
	w.mu.Lock()
	isSame := lb.SameMap(members, w.members) &&
		maps.Equal(heard, w.heard) &&
		w.owners.Same(owners) &&
		ownAddress == w.ownAddress
	w.mu.Unlock()
	if isSame {
		return // the usual case: there may be a thousand nodes
	}

	defer w.reportEchoes(w.withoutEcho())
	w.mu.Lock()
	defer w.mu.Unlock()
	for node := range heard {
		if !w.heard[node] {
			// It may be another run.
			w.trials[node] = echoTrial{getsThrough: w.trials[node].getsThrough}
			w.trialsElsewhere[node] = echoTrial{getsThrough: w.trialsElsewhere[node].getsThrough}
		}
	}

	w.setOwners(owners)
	w.members = members
	w.heard = heard
	w.ownAddress = ownAddress
	removeUnknown(w.announced, members)
	removeUnknown(w.trials, members)
	removeUnknown(w.trialsElsewhere, members)
	maps.Copy(w.announced, w.ownedBy)
}

// setOwners replaces the owners, and updates the addresses of each. The caller holds mu.
func (w *wireChecker) setOwners(owners lb.Map[netip.Addr, string]) {
	moved := map[string][]netip.Addr{}
	w.owners.Changes(owners, func(a netip.Addr, before, after string, _, _ bool) {
		moved[before] = append(moved[before], a)
		moved[after] = append(moved[after], a)
	})
	delete(moved, "")

	w.owners = owners
	for node, addrs := range moved {
		isOwner := func(a netip.Addr) (v struct{}, has bool) { return v, owners.Of(a) == node }
		w.ownedBy[node] = w.ownedBy[node].With(slices.Values(addrs), isOwner)
		if w.ownedBy[node].Len() == 0 {
			delete(w.ownedBy, node)
		}
	}
}

// removeUnknown removes the nodes that are not among the members.
func removeUnknown[V any](byNode map[string]V, members map[string]lb.Member) {
	maps.DeleteFunc(byNode, func(node string, _ V) bool {
		_, isKnown := members[node]
		return !isKnown
	})
}

// run asks foreign machines and speakers from time to time until ctx ends, so that it is known which of them answer
// when it matters. It returns nil.
func (w *wireChecker) run(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		for _, l := range w.config.Links() {
			if w.carriesHeartbeats(l) && w.isForeignDue() {
				machines := w.config.Asker.Foreign(l.Name, maxForeign)
				w.foreignReply(machines, w.config.Asker.Ask(ctx, machines, wireTime))
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

// isForeignDue reports whether no foreign machine answered within foreignInterval.
func (w *wireChecker) isForeignDue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.answeredAt {
		if w.clock().Sub(at) < foreignInterval {
			return false
		}
	}
	return true
}

// ask asks about one node.
func (w *wireChecker) ask(node string) detect.WireAnswer {
	w.mu.Lock()
	addresses := slices.Collect(w.announced[node].Keys())
	getsThrough := w.trials[node].getsThrough
	getsThroughElsewhere := w.trialsElsewhere[node].getsThrough
	w.mu.Unlock()

	q := w.questions(node, addresses)
	own := echoes(q.own)
	if !getsThrough {
		own = append(own, q.own...)
	}

	all := slices.Concat(own, q.foreign, q.elsewhere, q.hearing, q.notHearing, q.foreignElsewhere)
	counts := w.config.Asker.Ask(context.Background(), all, wireTime)
	// take returns the counts of the next questions, in the order above.
	take := func(questions []lb.Question) []int {
		taken := counts[:len(questions)]
		counts = counts[len(questions):]
		return taken
	}

	var out detect.WireAnswer
	out.Node = anyOf(take(own))
	out.Foreign = w.foreignReply(q.foreign, take(q.foreign))
	out.Elsewhere = anyOf(take(q.elsewhere))
	out.Hears = anyOf(take(q.hearing)) == detect.Answered
	out.HearsNone = anyOf(take(q.notHearing)) == detect.Answered
	out.ForeignElsewhere = allOf(take(q.foreignElsewhere))
	if out.Elsewhere == detect.Unanswered && !getsThroughElsewhere {
		out.Elsewhere = detect.NotAsked // echoes may not get through there
	}

	w.recordForeign(out.Foreign)
	return out
}

// recordForeign records whether a foreign machine on the link of the heartbeats answers at this moment.
func (w *wireChecker) recordForeign(answer detect.WireReply) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.foreignAnsweredAt = time.Time{}
	if answer == detect.Answered {
		w.foreignAnsweredAt = w.clock()
	}
}

// hearsForeign reports whether a foreign machine on the link of the heartbeats answered when this node last asked about
// a silent node, less than hearsForeignTime ago.
func (w *wireChecker) hearsForeign() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.foreignAnsweredAt.IsZero() && w.clock().Sub(w.foreignAnsweredAt) < hearsForeignTime
}

// foreignReply records the answers of foreign machines, and returns what they show. The silence of a machine that did
// not answer within foreignLifetime shows nothing.
func (w *wireChecker) foreignReply(machines []lb.Question, counts []int) detect.WireReply {
	reply := allOf(counts)
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.clock()
	maps.DeleteFunc(w.answeredAt, func(_ lb.Question, answeredAt time.Time) bool {
		return at.Sub(answeredAt) > foreignLifetime
	})

	hasKnown := false
	for i, q := range machines {
		if counts[i] > 0 {
			w.answeredAt[q] = at
		}

		if _, isKnown := w.answeredAt[q]; isKnown {
			hasKnown = true
		}
	}

	if reply == detect.Unanswered && !hasKnown {
		return detect.NotAsked
	}

	return reply
}

// nodeQuestions are the questions about a node.
type nodeQuestions struct {
	// own go to the node about what it announces, and foreign to foreign machines: on the link of the heartbeats.
	own, foreign []lb.Question
	// elsewhere are echoes on the other shared links where both speakers listen: whether the speaker runs.
	elsewhere []lb.Question
	// hearing and notHearing are echoes there too: whether the speaker hears another machine on the link of the
	// heartbeats.
	hearing, notHearing []lb.Question
	// kernelElsewhere go to the kernel of the node on those links, and foreignElsewhere to foreign machines there.
	kernelElsewhere, foreignElsewhere []lb.Question
}

// questions returns what to ask about a node that announced these addresses. If it does not share the link of the
// heartbeats, it is asked about what it announces on all links that it shares.
func (w *wireChecker) questions(node string, addresses []netip.Addr) (out nodeQuestions) {
	w.mu.Lock()
	theirs := w.members[node].Links
	// Our own link may have lost its carrier.
	sharesPath := slices.ContainsFunc(theirs, func(t lb.Link) bool { return hasSubnetWith(t, w.ownAddress) })
	w.mu.Unlock()

	var others []lb.Question
	for _, l := range w.config.Links() {
		if !l.CanAnnounce() {
			continue
		}

		i := slices.IndexFunc(theirs, func(t lb.Link) bool { return sharesNetwork(l, t) })
		if i < 0 {
			continue
		}

		peer := theirs[i]
		announced := questionsFor(l, peer, addressesOn(peer, addresses))
		foreign := w.config.Asker.Foreign(l.Name, maxForeign)
		if w.carriesHeartbeats(l) {
			out.own = announced
			out.foreign = foreign
			continue
		}

		others = append(others, announced...)
		// A speaker listens on other links only while it announces something there.
		if l.Usable() && peer.Default {
			out.addElsewhere(l, peer, foreign)
		}
	}

	if !sharesPath {
		return nodeQuestions{own: others}
	}

	return out
}

// addElsewhere adds the questions on a shared link that does not carry the heartbeats.
func (q *nodeQuestions) addElsewhere(l lb.Interface, peer lb.Link, foreign []lb.Question) {
	echo := func(about netip.Addr) lb.Question {
		return lb.Question{Link: l.Name, MAC: peer.MAC, Address: about, Echo: true}
	}

	q.elsewhere = append(q.elsewhere, echo(netip.IPv6Unspecified()))
	q.hearing = append(q.hearing, echo(lb.Hearing))
	q.notHearing = append(q.notHearing, echo(lb.NotHearing))
	q.kernelElsewhere = append(q.kernelElsewhere, questionsFor(l, peer, peer.Addresses)...)
	q.foreignElsewhere = append(q.foreignElsewhere, foreign...)
}

// questionsFor returns the questions to a node on a link whether it has these addresses.
func questionsFor(l lb.Interface, peer lb.Link, addresses []netip.Addr) (out []lb.Question) {
	for _, a := range addresses {
		out = append(out, lb.Question{Link: l.Name, MAC: peer.MAC, Address: a})
	}
	return out
}

// carriesHeartbeats reports whether a link that can announce carries the heartbeats.
func (w *wireChecker) carriesHeartbeats(l lb.Interface) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.CanAnnounce() && hasAddress(l, w.ownAddress)
}

// sharesNetwork reports whether a link of this node and a link of another node may be on one network: both have an
// address in one subnet, or both have none and the same name, such as the VLAN of clients. Only an answer there shows
// that they are.
func sharesNetwork(ours lb.Interface, theirs lb.Link) bool {
	subnets := subnetsOf(ours)
	if len(subnets) == 0 && len(theirs.Prefixes) == 0 {
		return ours.Name == theirs.Name
	}

	isShared := func(p netip.Prefix) bool { return slices.Contains(subnets, subnet(p)) }
	return slices.ContainsFunc(theirs.Prefixes, isShared)
}

// subnetsOf returns the subnets of a link of this node, as others publish theirs.
func subnetsOf(ours lb.Interface) (subnets []netip.Prefix) {
	for _, p := range ours.Prefixes {
		if !p.Addr().IsLinkLocalUnicast() {
			subnets = append(subnets, subnet(p))
		}
	}

	return subnets
}

// hasSubnetWith reports whether the subnet of an address is on a link of another node.
func hasSubnetWith(l lb.Link, a netip.Addr) bool {
	return slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return subnet(p).Contains(a) })
}

// subnet returns the subnet of an address with its length. DHCPv6 gives addresses without a length (RFC 8415 section
// 18.2.10.1): they count as in the /64 that IPv6 subnets have (RFC 4291 section 2.5.4).
func subnet(p netip.Prefix) netip.Prefix {
	if p.Addr().Is6() && p.IsSingleIP() {
		p = netip.PrefixFrom(p.Addr(), 64)
	}
	return p.Masked()
}

// addressesOn returns at most maxAsked of the announced addresses to ask for on a link: addresses of its own subnets
// first, which the node surely announces there.
func addressesOn(l lb.Link, announced []netip.Addr) []netip.Addr {
	isInSubnet := func(a netip.Addr) bool {
		return slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	}

	var inSubnet, others []netip.Addr
	for _, a := range announced {
		if len(inSubnet) == maxAsked {
			break
		}

		if isInSubnet(a) {
			inSubnet = append(inSubnet, a)
		} else if len(others) < maxAsked {
			others = append(others, a)
		}
	}

	return append(inSubnet, others[:min(len(others), maxAsked-len(inSubnet))]...)
}

// minAnswers is how many of three questions must be answered.
const minAnswers = 2

// anyOf returns whether one question was answered well enough, by the number of answers to each.
func anyOf(counts []int) detect.WireReply {
	reply := detect.NotAsked
	for _, n := range counts {
		if n >= minAnswers {
			return detect.Answered
		}

		if n != lb.Unasked {
			reply = detect.Unanswered
		}
	}

	return reply
}

// allOf returns whether the machines that are there answered well enough, all together: where most frames are lost,
// one of many machines does so by chance.
func allOf(counts []int) detect.WireReply {
	wasAsked := false
	sum, answering := 0, 0
	for _, n := range counts {
		if n == lb.Unasked {
			continue
		}

		wasAsked = true
		sum += n
		answering += min(n, 1)
	}

	switch {
	case !wasAsked:
		return detect.NotAsked
	case answering > 0 && sum >= minAnswers*answering:
		return detect.Answered
	}

	return detect.Unanswered
}
