package liveness

import (
	"context"
	"errors"
	"time"
)

const (
	// maxVotesRead bounds the missing nodes whose votes are read: see unheard. The speakers that
	// repeat their votes are among the first by name.
	maxVotesRead = 8
	// voteInterval is between reads soon after a loss, slowVoteInterval later.
	voteInterval     = 250 * time.Millisecond
	slowVoteInterval = time.Second
	soon             = 10 * time.Second
	// readTime bounds one read: an API server that hangs counts as silent.
	readTime = time.Second
)

// ErrAway is returned where nothing shows that the network reaches the API server. A refusal does show it. An error of
// the server itself does not: it may come from a proxy on this very node that reaches none.
var ErrAway = errors.New("the API server does not answer")

// readVotes begins to read what missed speakers wrote, if this node is cut off and the votes are due. The caller holds
// mu.
func (p *prober) readVotes(ctx context.Context, now time.Time) {
	if !p.reach.cutOff() {
		p.votes, p.api = votes{}, false
		return
	}
	if p.reading || p.votesDue.After(now) {
		return
	}
	voters, latest := p.reach.unheard()
	p.reading, p.votesDue = true, now.Add(voteInterval)
	if now.Sub(latest) > soon {
		p.votesDue = now.Add(slowVoteInterval)
	}
	go p.read(ctx, voters[:min(len(voters), maxVotesRead)])
}

func (p *prober) read(ctx context.Context, voters []string) {
	for _, node := range voters {
		within, cancel := context.WithTimeout(ctx, readTime)
		vote, err := p.config.Cluster.Vote(within, node)
		cancel()
		p.mu.Lock()
		p.api = !errors.Is(err, ErrAway)
		if err == nil && vote.Written != "" {
			p.votes.add(time.Now(), node, vote)
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	p.reading = false
	p.mu.Unlock()
	p.config.KickProbe()
}
