package liveness

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// maxVotesRead bounds the missing nodes whose votes are read: see unheardNodes. The speakers that
	// repeat their votes are among the first by name.
	maxVotesRead = 8
	// voteInterval is the time between reads within recentLossTime of a loss, slowVoteInterval later.
	voteInterval     = 250 * time.Millisecond
	slowVoteInterval = time.Second
	recentLossTime   = 10 * time.Second
	// readTime bounds one read: an API server that hangs counts as silent.
	readTime = time.Second
)

// ErrAway is returned where nothing shows that the network reaches the API server. A refusal does show it. An error of
// the server itself does not: it may come from a proxy on this very node that reaches none.
var ErrAway = errors.New("the API server does not answer")

// voteReader has the votes of other sides of a partition, and how they are read.
type voteReader struct {
	votes votesByNode
	// partition is the published result of the votes.
	partition lb.Partition
	// isReading reports whether votes are being read, and dueAt is when they are to be read next.
	isReading bool
	dueAt     time.Time
	// apiAnswers reports whether the API server answered the last read.
	apiAnswers bool
}

// readVotes begins to read what missed speakers wrote, if this node is cut off and the votes are due. The caller holds
// mu.
func (p *prober) readVotes(ctx context.Context, at time.Time) {
	v := &p.reader
	if !p.reach.isCutOff() {
		v.votes = votesByNode{}
		v.apiAnswers = false
		return
	}

	if v.isReading || v.dueAt.After(at) {
		return
	}

	voters, latestLoss := p.reach.unheardNodes()
	v.isReading = true
	v.dueAt = at.Add(voteInterval)
	if at.Sub(latestLoss) > recentLossTime {
		v.dueAt = at.Add(slowVoteInterval)
	}

	go p.readVotesOf(ctx, voters[:min(len(voters), maxVotesRead)])
}

// readVotesOf reads the votes of nodes, one after the other.
func (p *prober) readVotesOf(ctx context.Context, voters []string) {
	for _, node := range voters {
		readCtx, cancel := context.WithTimeout(ctx, readTime)
		vote, err := p.config.Cluster.Vote(readCtx, node)
		cancel()

		p.mu.Lock()
		p.reader.apiAnswers = !errors.Is(err, ErrAway)
		if err == nil && vote.Written != "" {
			p.reader.votes.add(time.Now(), node, vote)
		}
		p.mu.Unlock()
	}

	p.mu.Lock()
	p.reader.isReading = false
	p.mu.Unlock()
	p.config.KickProbe()
}
