package layer2

import (
	"net/netip"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// maxClaims bounds the claims of other speakers that are kept. A forger may fill them: then duplicate checks
	// find a second owner, as without claims.
	maxClaims = 4096
	// claimAge is how long a claim is kept after it was last seen: two owners of which neither may have to yield are
	// asked again when that changes.
	claimAge = conflictAge
	// contestWait is how long a node that may have to yield owns an address before it asks all neighbours which other
	// node has it. By then a former owner has usually left it.
	contestWait = moveTime / 10
)

// speakerClaims are the claims of other speakers for addresses of this node. Any machine on the link can forge one, so
// a claim is only a reason to ask the speaker: see lb.Question.
type speakerClaims struct {
	mu sync.Mutex
	// seen has when each claim was last seen, as the question to the speaker.
	seen map[lb.Question]time.Time
}

// recordClaim records the claim of a speaker.
func (r *Responder) recordClaim(n notice, at time.Time) {
	if r.config.Precedence == nil {
		return
	}

	r.claims.mu.Lock()
	defer r.claims.mu.Unlock()
	question := lb.Question{Link: n.link, MAC: n.mac, Address: n.addr, Echo: true, Contest: true}
	_, isKnown := r.claims.seen[question]
	if !isKnown && len(r.claims.seen) >= maxClaims {
		return
	}

	if r.claims.seen == nil {
		r.claims.seen = make(map[lb.Question]time.Time)
	}

	r.claims.seen[question] = at
	r.config.Claimed()
}

// mayYield reports whether this node may have to leave an address to another node that owns it too.
func (r *Responder) mayYield() bool {
	return r.config.Precedence != nil && r.config.Precedence().MayYield()
}

// Claims returns a question of a contest for each claim of another speaker for an address of this node, if it is not
// older than claimAge.
func (r *Responder) Claims() (questions []lb.Question) {
	t := r.table.Load()
	at := r.system.clock()
	r.claims.mu.Lock()
	defer r.claims.mu.Unlock()
	for q, seenAt := range r.claims.seen {
		if at.Sub(seenAt) > claimAge || !t.answersFor(q.Address) {
			delete(r.claims.seen, q)
			continue
		}

		questions = append(questions, q)
	}

	return questions
}

// answersFor reports whether this node answers for an address.
func (t *addressTable) answersFor(addr netip.Addr) bool {
	e := t.entries.Of(addr)
	return e != nil && e.current().answers()
}

// contestQuestion makes the question of a contest. It returns nil without a key.
func (r *Responder) contestQuestion(l *lb.Interface, q lb.Question) []byte {
	if r.config.Precedence == nil {
		return nil
	}

	answers := r.table.Load().answersFor(q.Address)
	return r.echo.contest(l, q.MAC, q.Address, r.config.Precedence(), answers)
}

// answerContest answers the question of a contest if this node owns the address on the link and has precedence over
// the asker, which then leaves the address to it. A node that hands the address over, offers it or stands in does not
// answer, nor does a node that has not announced it: the address would have no owner.
func (p *linkPort) answerContest(proto protocol, l *portLink, m message) ([]byte, frameResult) {
	e := p.r.table.Load().entryOn(m.target, &l.Interface)
	isOwned := e != nil && e.phaseOn(l.Name) == owned && e.isAnnounced.Load()
	switch {
	case !isOwned || p.r.config.Precedence == nil:
		return nil, notOurs
	case !p.r.lapses.isValid():
		return nil, lapsed
	case !p.r.config.Precedence().Over(m.precedence):
		return nil, notOurs
	}

	if m.askerAnswers {
		// Neighbours may have learned its MAC until then.
		p.r.notify(notice{addr: m.target, isHandover: true})
	}

	return proto.answer(&l.Interface, l.MAC, m), answered
}
