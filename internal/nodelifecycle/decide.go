package nodelifecycle

import (
	"maps"
	"slices"
	"time"
)

const (
	// fresh is how old a suspicion may be to have a node declared dead. After that time
	// Kubernetes has decided for itself (40 to 50 s by default), and a speaker that died
	// meanwhile has no vote.
	fresh = time.Minute
	// confirmTime is how long the majority must stand: a node that is merely not heard
	// may be about to show that it lives.
	confirmTime = 200 * time.Millisecond
	// A kubelet renews its Lease every 10 s. A node whose kubelet missed a renewal may have been off. Then it must live
	// for returnTime before its pods are restored: its kubelet renews the Lease before it reports that the containers
	// are gone, and until then the pods look as ready as ever, with addresses that nothing has any more. Of a node that
	// ran meanwhile the kubelet reports its pods by itself.
	renewTime, returnTime = 15 * time.Second, 10 * time.Second
	// Of two speakers one voice decides. Within wrongTime after it was wrong about a node it counts only if nothing was
	// seen of that node for patience, in which a kubelet renews its Lease.
	wrongTime, patience = 10 * time.Minute, 15 * time.Second
)

// suspicion is what one speaker reports: that it cannot reach a node. It has one for each node.
type suspicion struct {
	// speaker by the name of its node.
	speaker string
	// node that it cannot reach.
	node string
	// since is when the speaker last heard of the node.
	since time.Time
}

// state is everything the decision depends on. Times are those of one clock, as a
// tracker makes them.
type state struct {
	now time.Time
	// speakers is how many there should be, dead ones included. 0 withdraws nothing.
	speakers   int
	suspicions []suspicion
	// lastSeen is when each node last gave a sign of life. A node without an entry was
	// not checked, and is not declared dead.
	lastSeen map[string]time.Time
	// missed are the nodes whose kubelets missed a renewal of their Leases.
	missed map[string]bool
	// withdrawn are the nodes whose endpoints are withdrawn.
	withdrawn map[string]bool
	// restored are the nodes whose endpoints were restored because they live, with the time of that.
	restored map[string]time.Time
	// notReady are the nodes that Kubernetes itself has given up: it looks after their pods.
	notReady map[string]bool
	// limit on nodes whose endpoints are withdrawn at once.
	limit Limit
}

// decision says what becomes of the endpoints on each suspected node. The lists are
// sorted, and no node is in two.
type decision struct {
	// withdraw endpoints on these nodes, or keep them withdrawn.
	withdraw []string
	// restore endpoints on these nodes.
	restore []string
	// handOver these nodes, whose endpoints were withdrawn, to Kubernetes.
	handOver []string
	// spared nodes would be declared dead if they were not too many.
	spared []string
	// votes counts the speakers whose suspicion of a node counts.
	votes map[string]int
}

// decide applies the rules.
func decide(s state) decision {
	d := decision{votes: s.votes(s.suspicions)}
	for _, node := range slices.Sorted(maps.Keys(s.withdrawn)) {
		switch {
		case s.notReady[node]:
			d.handOver = append(d.handOver, node)
		case s.majority(d.votes[node]):
			d.withdraw = append(d.withdraw, node)
		default:
			d.restore = append(d.restore, node)
		}
	}
	// Those that are not checked yet count too: Leases are read at a pace, and the limit must hold meanwhile.
	suspects := slices.DeleteFunc(s.suspects(), func(node string) bool { return s.withdrawn[node] })
	if len(d.withdraw)+len(suspects) > s.limit.Of(s.speakers) {
		d.spared = suspects
		return d
	}
	for _, node := range suspects {
		if seen, checked := s.lastSeen[node]; checked &&
			(s.speakers > 2 ||
				s.now.Sub(s.restored[node]) >= wrongTime ||
				s.now.Sub(seen) >= patience) {
			d.withdraw = append(d.withdraw, node)
		}
	}
	slices.Sort(d.withdraw)
	return d
}

// toCheck returns the nodes whose signs of life decide: those that a majority
// suspects, whatever was seen of them, and those that are withdrawn. It is sorted.
func (s state) toCheck() []string {
	s.lastSeen = nil
	nodes := slices.AppendSeq(s.suspects(), maps.Keys(s.withdrawn))
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// suspects returns the nodes that a majority suspects afresh, sorted.
func (s state) suspects() []string {
	votes := s.votes(
		slices.DeleteFunc(slices.Clone(s.suspicions), func(x suspicion) bool { return s.now.Sub(x.since) >= fresh }),
	)
	var out []string
	for _, node := range slices.Sorted(maps.Keys(votes)) {
		if s.majority(votes[node]) && !s.notReady[node] {
			out = append(out, node)
		}
	}
	return out
}

// votes counts, for each node, the speakers whose suspicion counts:
// not the node's own, and none that a sign of life refutes.
func (s state) votes(suspicions []suspicion) map[string]int {
	out := map[string]int{}
	for _, x := range suspicions {
		if x.speaker != x.node && !s.lastSeen[x.node].After(x.since) {
			out[x.node]++
		}
	}
	return out
}

// majority reports whether so many votes decide: more than half of all speakers that
// there should be. Of two, the other's vote is half and must do: that it was written
// shows that this speaker reaches the API server.
func (s state) majority(votes int) bool {
	if s.speakers == 2 {
		return votes >= 1
	}
	return s.speakers > 2 && 2*votes > s.speakers
}

// confirm returns those of the nodes to withdraw for which this was decided a while
// ago, and since when it has been decided for each.
func (s state) confirm(
	withdraw []string,
	before map[string]time.Time,
) (confirmed []string, pending map[string]time.Time) {
	pending = map[string]time.Time{}
	for _, node := range withdraw {
		since, known := before[node]
		if !known {
			since = s.now
		}
		pending[node] = since
		if s.withdrawn[node] || s.now.Sub(since) >= confirmTime {
			confirmed = append(confirmed, node)
		}
	}
	return confirmed, pending
}

// returned returns those of the nodes to restore that were not off, or have lived again for long enough, and since when
// it has been decided for each.
func (s state) returned(
	restore []string,
	before map[string]time.Time,
) (settled []string, returning map[string]time.Time) {
	returning = map[string]time.Time{}
	for _, node := range restore {
		since, known := before[node]
		if !known {
			since = s.now
		}
		returning[node] = since
		if !s.missed[node] || s.now.Sub(since) >= returnTime {
			settled = append(settled, node)
		}
	}
	return settled, returning
}
