package quorum

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// fresh is how old a word may be to have a node declared dead. After that time
// Kubernetes has come to its own verdict (40 to 50 s by default), and the word of a
// speaker that died itself meanwhile has no weight any more.
const fresh = time.Minute

// Word is what one speaker says: that it cannot reach a node.
type Word struct {
	// Speaker by the name of its node.
	Speaker string
	// Node that it cannot reach.
	Node string
	// Since is when the speaker heard of the node last.
	Since time.Time
}

// State is everything the decision depends on. Times are those of one clock, as a
// Tracker makes them.
type State struct {
	Now time.Time
	// Speakers is how many there should be, dead ones included. 0 withdraws nothing.
	Speakers int
	Words    []Word
	// Life is when each node last gave a sign of life. A node that is not in it was
	// not looked at, and is not declared dead.
	Life map[string]time.Time
	// Withdrawn are the nodes whose endpoints are withdrawn, with the time it was decided.
	Withdrawn map[string]time.Time
	// Given are the nodes that Kubernetes itself has given up: their pods are its business.
	Given map[string]bool
	// Limit on nodes whose endpoints are withdrawn at once.
	Limit Limit
}

// Decision says of each node that was spoken of what becomes of the endpoints on it.
// The lists are sorted, and no node is in two.
type Decision struct {
	// Withdraw endpoints on these nodes, or keep them withdrawn.
	Withdraw []string
	// Restore endpoints on these nodes.
	Restore []string
	// Forget that endpoints on these nodes were withdrawn: Kubernetes says so itself now.
	Forget []string
	// Spared nodes would be declared dead, were they not too many.
	Spared []string
	// Against counts the speakers whose word counts against each node.
	Against map[string]int
}

// Decide applies the rules.
func Decide(s State) Decision {
	d := Decision{Against: s.against(s.Words)}
	recent := 0
	for _, node := range slices.Sorted(maps.Keys(s.Withdrawn)) {
		switch {
		case s.Given[node]:
			d.Forget = append(d.Forget, node)
		case s.majority(d.Against[node]):
			d.Withdraw = append(d.Withdraw, node)
			if s.Now.Sub(s.Withdrawn[node]) < fresh {
				recent++
			}
		default:
			d.Restore = append(d.Restore, node)
		}
	}
	news := s.news()
	if recent+len(news) > s.Limit.Of(s.Speakers) {
		d.Spared = news
		return d
	}
	d.Withdraw = append(d.Withdraw, news...)
	slices.Sort(d.Withdraw)
	return d
}

// Accused returns the nodes that a majority speaks against by fresh words, whatever
// signs of life there are: those that are worth a look. It is sorted.
func Accused(s State) []string {
	s.Life = nil
	against := s.against(s.freshWords())
	var out []string
	for _, node := range slices.Sorted(maps.Keys(against)) {
		if s.majority(against[node]) && !s.Given[node] {
			out = append(out, node)
		}
	}
	return out
}

// news returns the nodes to declare dead that are not yet, sorted.
func (s State) news() []string {
	against := s.against(s.freshWords())
	var out []string
	for _, node := range slices.Sorted(maps.Keys(against)) {
		_, looked := s.Life[node]
		_, withdrawn := s.Withdrawn[node]
		if looked && !withdrawn && !s.Given[node] && s.majority(against[node]) {
			out = append(out, node)
		}
	}
	return out
}

func (s State) freshWords() []Word {
	return slices.DeleteFunc(slices.Clone(s.Words), func(w Word) bool { return s.Now.Sub(w.Since) >= fresh })
}

// against counts, for each node, the speakers whose word counts: one for each
// speaker, none for what a node says of itself, and none that a sign of life refutes.
func (s State) against(words []Word) map[string]int {
	said := map[string]map[string]bool{}
	for _, w := range words {
		if w.Speaker == w.Node || s.Life[w.Node].After(w.Since) {
			continue
		}
		if said[w.Node] == nil {
			said[w.Node] = map[string]bool{}
		}
		said[w.Node][w.Speaker] = true
	}
	out := map[string]int{}
	for node, speakers := range said {
		out[node] = len(speakers)
	}
	return out
}

// majority reports whether so many words decide: more than half of all speakers
// that there should be. Of two, the other one's word is half and must do: that it
// got here shows that it reaches the API server.
func (s State) majority(words int) bool {
	if s.Speakers == 2 {
		return words >= 1
	}
	return s.Speakers > 2 && 2*words > s.Speakers
}

// Problems words what Decide spared, one for each node.
func Problems(s State, d Decision) []lb.Problem {
	var out []lb.Problem
	for _, node := range d.Spared {
		out = append(out, lb.Problem{
			Object: lb.Object{Kind: "Node", Name: node},
			Reason: lb.TooManyUnreachable,
			Message: fmt.Sprintf("most speakers cannot reach %s, which is more at once than the limit of %d lets us call dead: their endpoints stay; look at the network between the nodes",
				strings.Join(d.Spared, ", "), s.Limit.Of(s.Speakers)),
		})
	}
	return out
}
