package nodelifecycle

import (
	"maps"
	"slices"
	"time"
)

const (
	// maxSuspicionAge is the age up to which a suspicion can declare a node dead. After that time Kubernetes has
	// decided for itself (40 to 50 s by default), and a speaker that died meanwhile must not vote.
	maxSuspicionAge = time.Minute
	// confirmTime is the time for which the majority must last: a node that is not heard may be about to show a sign of
	// life.
	confirmTime = 200 * time.Millisecond

	// maxRenewalGap is the longest time between two renewals of a Lease by a running kubelet, which renews it every 10
	// s. After a longer gap the node may have been powered off.
	maxRenewalGap = 15 * time.Second
	// returnTime is the time for which a node that may have been off must be alive before its pods are restored. Its
	// kubelet renews the Lease before it reports that the containers are gone. Until then the pods look ready, although
	// their addresses do not exist any more. If the node was on, its kubelet reports its pods by itself.
	returnTime = 10 * time.Second

	// distrustTime applies to clusters of two speakers, where one vote decides. For so long after its vote was wrong
	// about a node, a speaker's vote counts only after distrustedSilence.
	distrustTime = 10 * time.Minute
	// distrustedSilence is a time without a sign of life in which a running kubelet renews its Lease.
	distrustedSilence = 15 * time.Second
)

// suspicion is a speaker's report that it cannot reach a node. A speaker has at most one suspicion of each node.
type suspicion struct {
	// speaker is the name of the speaker's node.
	speaker string
	// node is the node that the speaker cannot reach.
	node string
	// since is the time at which the speaker last heard of the node.
	since time.Time
}

// decisionInput is everything that a decision depends on. All times are by the controller's clock; a tracker converts
// them.
type decisionInput struct {
	at time.Time
	// speakers is the number of speakers that should run, including dead ones. 0 withdraws nothing.
	speakers   int
	suspicions []suspicion
	// lastSeen is the time of each node's last sign of life. A node without an entry was not checked, and is not
	// declared dead.
	lastSeen map[string]time.Time
	// missedRenewals are the nodes whose kubelets missed a renewal of their Leases.
	missedRenewals map[string]bool
	// withdrawn are the nodes whose endpoints are withdrawn.
	withdrawn map[string]bool
	// restored are the nodes whose endpoints were restored because the nodes are alive, with the time of the
	// restoration.
	restored map[string]time.Time
	// notReady are the nodes that Kubernetes has given up; it handles their pods.
	notReady map[string]bool
	// limit bounds the number of nodes whose endpoints are withdrawn at once.
	limit Limit
}

// decision has the suspected nodes by what happens to their endpoints. The lists are sorted, and no node is in two
// lists.
type decision struct {
	// withdraw are the nodes whose endpoints are withdrawn or stay withdrawn.
	withdraw []string
	// restore are the nodes whose endpoints are restored.
	restore []string
	// handOver are the nodes with withdrawn endpoints that are left to Kubernetes.
	handOver []string
	// spared are the nodes that would be declared dead if there were fewer of them.
	spared []string
	// votes counts the valid suspicions of each node.
	votes map[string]int
}

// decide applies the rules of the package comment.
func decide(in decisionInput) decision {
	d := decision{votes: in.votes(in.suspicions)}

	for _, node := range slices.Sorted(maps.Keys(in.withdrawn)) {
		switch {
		case in.notReady[node]:
			d.handOver = append(d.handOver, node)
		case in.isMajority(d.votes[node]):
			d.withdraw = append(d.withdraw, node)
		default:
			d.restore = append(d.restore, node)
		}
	}

	// Suspects that are not checked yet count too: Leases are read at a limited rate, and the limit must hold
	// meanwhile.
	suspects := slices.DeleteFunc(in.suspects(), func(node string) bool {
		return in.withdrawn[node]
	})
	if len(d.withdraw)+len(suspects) > in.limit.Of(in.speakers) {
		d.spared = suspects
		return d
	}

	for _, node := range suspects {
		if in.isDead(node) {
			d.withdraw = append(d.withdraw, node)
		}
	}

	slices.Sort(d.withdraw)
	return d
}

// isDead reports whether a suspect is declared dead.
func (in decisionInput) isDead(node string) bool {
	seen, isChecked := in.lastSeen[node]
	if !isChecked {
		return false
	}

	isTrusted := in.speakers > 2 || in.at.Sub(in.restored[node]) >= distrustTime
	return isTrusted || in.at.Sub(seen) >= distrustedSilence
}

// nodesToCheck returns the nodes whose signs of life matter, sorted: the withdrawn nodes, and the nodes that a majority
// suspects, even if a sign of life refutes that.
func (in decisionInput) nodesToCheck() []string {
	in.lastSeen = nil
	nodes := slices.AppendSeq(in.suspects(), maps.Keys(in.withdrawn))
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// suspects returns the nodes that a majority suspects by suspicions of the last minute, sorted.
func (in decisionInput) suspects() []string {
	isOld := func(x suspicion) bool { return in.at.Sub(x.since) >= maxSuspicionAge }
	recent := slices.DeleteFunc(slices.Clone(in.suspicions), isOld)
	votes := in.votes(recent)

	var out []string
	for _, node := range slices.Sorted(maps.Keys(votes)) {
		if in.isMajority(votes[node]) && !in.notReady[node] {
			out = append(out, node)
		}
	}

	return out
}

// votes counts the valid suspicions of each node. A suspicion is invalid if a sign of life refutes it, or if it comes
// from the node itself.
func (in decisionInput) votes(suspicions []suspicion) map[string]int {
	out := map[string]int{}
	for _, x := range suspicions {
		isRefuted := in.lastSeen[x.node].After(x.since)
		if x.speaker != x.node && !isRefuted {
			out[x.node]++
		}
	}

	return out
}

// isMajority reports whether a number of votes decides: more than half of all speakers that should run. Of two speakers
// one vote is enough, since the suspect has no vote. A vote that was written shows that its voter reaches the API
// server.
func (in decisionInput) isMajority(votes int) bool {
	if in.speakers == 2 {
		return votes >= 1
	}
	return in.speakers > 2 && 2*votes > in.speakers
}

// confirmWithdrawal returns the nodes whose withdrawal has been decided for confirmTime or is in force, and for each
// node of withdraw the time since when it has been decided. before is the second result of the previous run.
func (in decisionInput) confirmWithdrawal(
	withdraw []string,
	before map[string]time.Time,
) (confirmed []string, pending map[string]time.Time) {
	pending = in.decidedSince(withdraw, before)
	for _, node := range withdraw {
		if in.withdrawn[node] || in.at.Sub(pending[node]) >= confirmTime {
			confirmed = append(confirmed, node)
		}
	}

	return confirmed, pending
}

// confirmRestore returns the nodes to restore that cannot have been off, or that have been alive for returnTime. It
// also returns for each node of restore the time since when it has been decided.
func (in decisionInput) confirmRestore(
	restore []string,
	before map[string]time.Time,
) (confirmed []string, returning map[string]time.Time) {
	returning = in.decidedSince(restore, before)
	for _, node := range restore {
		if !in.missedRenewals[node] || in.at.Sub(returning[node]) >= returnTime {
			confirmed = append(confirmed, node)
		}
	}

	return confirmed, returning
}

// decidedSince returns for each node the time since when it has been decided: the time of the previous run if it was
// decided then too.
func (in decisionInput) decidedSince(nodes []string, before map[string]time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for _, node := range nodes {
		since, ok := before[node]
		if !ok {
			since = in.at
		}
		out[node] = since
	}

	return out
}
