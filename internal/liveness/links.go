package liveness

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// linkInterval is the time between questions on a link, and failingInterval while frames fail there.
	linkInterval    = 400 * time.Millisecond
	failingInterval = 200 * time.Millisecond
	// singleAnswerTime is how long the usual machine has to answer one question, before it is asked three: most rounds
	// end there.
	singleAnswerTime = 10 * time.Millisecond
	// idleRounds is how many intervals there are between rounds while no node announces anything and every link works:
	// no address depends on a link then.
	idleRounds = 10
	// maxNeighbours bounds the foreign machines among the machines that are asked when the usual one does not answer,
	// and maxNeighboursAsked all of these.
	maxNeighbours      = 3
	maxNeighboursAsked = 2 * maxNeighbours
)

// linkWatcher watches the links beside the network between the nodes' addresses. If a port is dead with its carrier up,
// its own node notices: it hears no speaker's frames there, and no machine answers, neither speakers nor foreign
// machines. Without frames, as between older speakers, only the answers count. The node reports that to the other
// nodes, and so does the node of a link that lost its carrier, until machines are heard for a while. If no node on a
// link hears another, all report the same, and nothing moves.
type linkWatcher struct {
	config Config
	clock  func() time.Time
	// lastKnown returns what is known of the speakers: which share a link, which are alive, and the address of this
	// node that heartbeats use, whose link is not watched.
	lastKnown func() Known
	// isIdle reports whether no node announces anything.
	isIdle atomic.Bool

	mu sync.Mutex
	// hasStarted reports whether the links were read at least once.
	hasStarted bool
	// kicked ends the wait for the next round.
	kicked chan struct{}
	// watched has each link by name.
	watched map[string]*watchedLink
	// published is what the last round found.
	published linkFindings
	// foreignAskedAt is when foreign machines were last asked. While a speaker answers they need not be asked, and
	// would be forgotten.
	foreignAskedAt time.Time
}

// linkFindings are the links that this node leaves to other nodes.
type linkFindings struct {
	silent map[string]bool
	// unanswered and returned are the links among them that are up, for users: no machine answers there, or machines
	// answer again.
	unanswered, returned []string
	// divided are links with the nodes that are not heard there, although each side hears others. blocked are links
	// that lose frames and nothing else.
	divided, blocked []string
}

// newLinkWatcher returns a linkWatcher that Run starts.
func newLinkWatcher(c Config, lastKnown func() Known, clock func() time.Time) *linkWatcher {
	return &linkWatcher{
		config:    c,
		clock:     clock,
		lastKnown: lastKnown,
		kicked:    make(chan struct{}, 1),
		watched:   map[string]*watchedLink{},
		published: linkFindings{silent: map[string]bool{}},
	}
}

// Silent returns the names of links that this node leaves to other nodes: no machine answers there any more, or the
// carrier came back a short while ago. It counts the carriers at this moment, so that no plan uses a link that has just
// returned.
func (l *linkWatcher) Silent() map[string]bool { return l.findings().silent }

// findings returns what is known of the links at this moment.
func (l *linkWatcher) findings() linkFindings {
	known := l.lastKnown()
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.clock()
	present := l.config.Links()
	l.observe(at, present)

	out := linkFindings{silent: map[string]bool{}}
	for _, own := range present {
		w := l.watched[own.Name]
		if w == nil || hasAddress(own, known.Address) {
			continue
		}

		others := dividedFrom(own, known)
		if w.isDivided(at, len(others) > 0) {
			out.divided = append(out.divided, fmt.Sprintf("%s (%s)", own.Name, lb.SomeOf(others)))
		}
		if w.isBlocked(at) {
			out.blocked = append(out.blocked, own.Name)
		}
		if !w.ranksBehind(at, func() bool { return l.isAlone(own, known) }) {
			continue
		}

		out.silent[own.Name] = true
		switch {
		case !w.isUp:
		case w.answeringSince.IsZero():
			out.unanswered = append(out.unanswered, own.Name)
		default:
			out.returned = append(out.returned, fmt.Sprintf("%s (%v)", own.Name, w.holdTime()))
		}
	}

	return out
}

// observe records which links are present, and which carrier each has. The caller holds mu.
func (l *linkWatcher) observe(at time.Time, present []lb.Interface) {
	if len(present) == 0 {
		return // not read yet
	}

	upSince := at
	if !l.hasStarted {
		l.hasStarted = true
		upSince = l.config.BootedAt
	}

	byName := map[string]lb.Interface{}
	for _, own := range present {
		byName[own.Name] = own
		if l.watched[own.Name] == nil && own.CanAnnounce() {
			l.watched[own.Name] = newWatchedLink(at, upSince, own)
		}
	}

	for name, w := range l.watched {
		own, isPresent := byName[name]
		if !isPresent && !w.everAnswered() {
			delete(l.watched, name) // such as the link of a pod that ended
			continue
		}

		w.observe(at, own)
	}
}

// Run asks on every link in turn until ctx ends. It returns nil.
func (l *linkWatcher) Run(ctx context.Context) error {
	next := time.NewTimer(linkInterval)
	defer next.Stop()
	for roundsToSkip := 0; ; roundsToSkip-- {
		select {
		case <-ctx.Done():
			return nil
		case <-l.kicked:
			roundsToSkip = 0
		case <-next.C:
		}

		if roundsToSkip > 0 && l.isIdle.Load() && l.allAnswer() {
			next.Reset(linkInterval)
			continue
		}

		began := l.askRound(ctx)
		roundsToSkip = idleRounds
		next.Reset(began.Add(l.interval()).Sub(l.clock()))
	}
}

// interval returns the time from the beginning of the last round to the next one.
func (l *linkWatcher) interval() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.watched {
		if w.isLeaving() {
			return failingInterval
		}
	}

	return linkInterval
}

// allAnswer reports whether every link that is up works: a machine answered in the last round, or none ever did.
func (l *linkWatcher) allAnswer() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.watched {
		hasStopped := w.everAnswered() && !w.hasAnswered
		if w.isUp && (w.isSilent || hasStopped) {
			return false
		}
	}

	return true
}

// askRound asks once on each link that is up. It returns when it began.
func (l *linkWatcher) askRound(ctx context.Context) (began time.Time) {
	known := l.lastKnown()
	began = l.clock()
	l.mu.Lock()
	present := l.config.Links()
	l.observe(began, present)
	l.mu.Unlock()

	for _, own := range present {
		if own.CanAnnounce() {
			l.askOn(ctx, began, own, known)
		}
	}

	l.askForeign(ctx, present, known)
	l.publish()

	return began
}

// askForeign asks foreign machines from time to time, so that they are known when it matters.
func (l *linkWatcher) askForeign(ctx context.Context, present []lb.Interface, known Known) {
	at := l.clock()
	if at.Sub(l.foreignAskedAt) < foreignInterval {
		return
	}

	l.foreignAskedAt = at
	var foreign []lb.Question
	for _, own := range present {
		if own.CanAnnounce() && !hasAddress(own, known.Address) {
			foreign = append(foreign, l.config.Asker.Foreign(own.Name, maxNeighbours)...)
		}
	}

	if len(foreign) > 0 {
		l.config.Asker.Ask(ctx, foreign, wireTime)
	}
}

// askOn asks once on one link, in the round that began at a time.
func (l *linkWatcher) askOn(ctx context.Context, at time.Time, own lb.Interface, known Known) {
	before := l.watchedLink(own.Name)
	result, isShared := l.judge(ctx, at, own, known, before)

	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.watched[own.Name]
	switch {
	case w == nil || !w.isUp || w.carrier != before.carrier:
		// The answers are older than its carrier.
	case isShared:
		w.record(at, result)
	case w.isByFrames() && l.hasOtherSpeakers(known):
		// Nothing shows whether it works. Its Detector may have restarted, and know no node there.
	case !w.isSettling(at):
		w.reset() // no other node could take an address over
	}
}

// judge finds out whether any machine is heard on a link. It reports false if no speaker is known to share the link.
// Where frames fail machines are asked before the link is left to others: the fabric may drop frames alone. Where
// frames are heard machines are asked seldom, and must answer if any ever did.
func (l *linkWatcher) judge(
	ctx context.Context,
	at time.Time,
	own lb.Interface,
	known Known,
	before watchedLink,
) (r roundResult, isShared bool) {
	if hasAddress(own, known.Address) {
		return roundResult{}, false
	}

	frames := known.framesOn(own.Name)
	others := l.countOthers(own, known)
	r.isAlone = others == 0
	r.isPair = others == 1 && len(frames.Peers) > 0
	r.isSure = frames.State == detect.LinkFails
	frame := lb.Question{Link: own.Name}
	isHeard := frames.State == detect.LinkWorks
	if isHeard && !before.isMachineDue(at) {
		r.machine = frame
		return r, true
	}

	machines := l.neighbours(own, known.Members, known.View.Alive)
	hasMachines := len(machines.all) > 0
	if hasMachines {
		r.machine = l.ask(ctx, before, machines.all)
		r.askedForeign = machines.hasForeign
	}

	isUnanswered := r.machine == lb.Question{}
	if isHeard && isUnanswered && !(hasMachines && before.answersQuestions()) {
		r.machine = frame
	}
	r.wasAsked = isHeard

	return r, hasMachines || r.isSure || isHeard
}

// hasOtherSpeakers reports whether there is a speaker beside this one, on any link.
func (l *linkWatcher) hasOtherSpeakers(k Known) bool {
	_, hasOwn := k.Members[l.config.Node.Name]
	return len(k.Members) > 1 || len(k.Members) == 1 && !hasOwn
}

// framesOn returns what the frames on a link show.
func (k Known) framesOn(link string) detect.LinkView {
	for _, v := range k.View.Links {
		if v.Link == link {
			return v
		}
	}

	return detect.LinkView{}
}

// kick has the next round begin at once.
func (l *linkWatcher) kick() {
	select {
	case l.kicked <- struct{}{}:
	default:
	}
}

// watchedLink returns a copy of what is known of a link.
func (l *linkWatcher) watchedLink(name string) watchedLink {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.watched[name]; w != nil {
		return *w
	}
	return watchedLink{}
}

// hasAddress reports whether a link has an address: the link with the address that heartbeats use carries them.
func hasAddress(own lb.Interface, address netip.Addr) bool {
	return slices.ContainsFunc(own.Prefixes, func(p netip.Prefix) bool { return p.Addr() == address })
}

// linkOf returns the name of the link that has an address.
func linkOf(links []lb.Interface, address netip.Addr) string {
	i := slices.IndexFunc(links, func(l lb.Interface) bool { return l.CanAnnounce() && hasAddress(l, address) })
	if i < 0 {
		return ""
	}

	return links[i].Name
}

// countOthers returns how many other living nodes have a link to the same network that is not silent.
func (l *linkWatcher) countOthers(own lb.Interface, known Known) (count int) {
	frames := known.framesOn(own.Name)
	for name, member := range known.Members {
		if name == l.config.Node.Name || !known.View.Alive[name] {
			continue
		}

		for _, theirs := range member.Links {
			sendsFrames := hasPeer(frames, name, theirs.MAC) && isSenderOn(own, member, theirs)
			isShared := sharesNetwork(own, theirs) || sendsFrames
			if theirs.MAC != own.MAC && !theirs.Silent && isShared {
				count++
				break
			}
		}
	}

	return count
}

// isAlone reports whether no other living node has a link to the same network that is not silent.
func (l *linkWatcher) isAlone(own lb.Interface, known Known) bool {
	return l.countOthers(own, known) == 0
}

// hasPeer reports whether frames came from an interface of a node.
func hasPeer(frames detect.LinkView, node string, mac lb.MAC) bool {
	return slices.ContainsFunc(frames.Peers, func(p detect.LinkPeer) bool { return p.Name == node && p.MAC == mac })
}

// isSenderOn reports whether a node's frames on a link come from this link of it, which has the MAC of these frames.
// VLANs share the MAC of their port: subnets tell them apart.
func isSenderOn(own lb.Interface, member lb.Member, theirs lb.Link) bool {
	count := 0
	for _, l := range member.Links {
		if l.MAC == theirs.MAC {
			count++
		}
	}
	lackSubnets := len(subnetsOf(own)) == 0 && len(theirs.Prefixes) == 0

	return count == 1 || lackSubnets || sharesNetwork(own, theirs)
}

// dividedFrom returns the nodes that this node does not hear on a link, where it hears others, although they are alive
// and hear others too: they do not report that their link is silent.
func dividedFrom(own lb.Interface, known Known) (nodes []string) {
	frames := known.framesOn(own.Name)
	if frames.State != detect.LinkWorks {
		return nil
	}

	for _, p := range frames.Peers {
		member := known.Members[p.Name]
		hearsOthers := func(theirs lb.Link) bool {
			return theirs.MAC == p.MAC && !theirs.Silent && isSenderOn(own, member, theirs)
		}
		isAlive := known.View.Alive[p.Name] && !known.View.SpeakerDown[p.Name]
		if p.Status == detect.Dead && isAlive && slices.ContainsFunc(member.Links, hearsOthers) {
			nodes = append(nodes, p.Name)
		}
	}

	return nodes
}

// linkMachines are the machines to ask on a link. hasForeign reports whether foreign machines are among them.
type linkMachines struct {
	all        []lb.Question
	hasForeign bool
}

// neighbours returns the machines to ask on a link: speakers that share it, the living first, and some foreign machines
// after the first of these. There are none if no speaker shares the link.
func (l *linkWatcher) neighbours(
	own lb.Interface,
	members map[string]lb.Member,
	alive map[string]bool,
) linkMachines {
	var living, silent []lb.Question
	for _, name := range slices.Sorted(maps.Keys(members)) {
		for _, theirs := range members[name].Links {
			if len(theirs.Addresses) == 0 || theirs.MAC == own.MAC || !sharesNetwork(own, theirs) {
				continue
			}

			q := lb.Question{Link: own.Name, MAC: theirs.MAC, Address: theirs.Addresses[0]}
			if alive[name] {
				living = append(living, q)
			} else {
				silent = append(silent, q)
			}
		}
	}

	if len(living)+len(silent) == 0 {
		return linkMachines{}
	}

	foreign := l.config.Asker.Foreign(own.Name, maxNeighbours)
	all := slices.Insert(living, min(len(living), maxNeighbours), foreign...)
	return linkMachines{all: append(all, silent...), hasForeign: len(foreign) > 0}
}

// ask asks the usual machine, and if it does not answer, up to maxNeighboursAsked neighbours. It returns the machine
// that answered, zero for none.
func (l *linkWatcher) ask(ctx context.Context, w watchedLink, neighbours []lb.Question) lb.Question {
	if w.answersQuestions() {
		usual := []lb.Question{w.answeringMachine}
		if l.config.Asker.Ask(ctx, usual, singleAnswerTime)[0] > 0 || l.firstAnswer(ctx, usual) == w.answeringMachine {
			return w.answeringMachine
		}
	}

	// No neighbour is asked twice before all were asked: many may have died at once.
	first := 0
	if !w.hasAnswered {
		first = w.streak * maxNeighboursAsked % len(neighbours)
	}

	rotated := slices.Concat(neighbours[first:], neighbours[:first])
	return l.firstAnswer(ctx, rotated[:min(len(rotated), maxNeighboursAsked)])
}

// firstAnswer returns the first machine that answers well enough, zero for none.
func (l *linkWatcher) firstAnswer(ctx context.Context, questions []lb.Question) lb.Question {
	for i, n := range l.config.Asker.Ask(ctx, questions, wireTime) {
		if n >= minAnswers {
			return questions[i]
		}
	}
	return lb.Question{}
}

// publish calls Changed if the findings differ from the published ones.
func (l *linkWatcher) publish() {
	found := l.findings()
	l.mu.Lock()
	hasChanged := !reflect.DeepEqual(found, l.published)
	l.published = found
	l.mu.Unlock()
	if !hasChanged {
		return
	}

	l.config.Log.Info(
		"links that are left to other nodes, divided, or without frames",
		"unanswered", found.unanswered,
		"returned", found.returned,
		"divided", found.divided,
		"blocked", found.blocked,
	)
	l.config.Changed()
}
