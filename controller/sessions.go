package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxCauses bounds the reasons that a BGPPeer lists.
	maxCauses = 3
	// maxCauseLength bounds the length of each reason, which may contain text from a router.
	maxCauseLength = 512
)

// sessionView has the sessions of all BGPPeers, as the SpeakerStates report them.
type sessionView struct {
	// byNode has the sessions of each node with a speaker, by the peers' names.
	byNode map[string]map[string]v1beta1.SessionState
	// silent has the nodes whose own report does not count, with the reason.
	silent map[string]string
}

// sessionView returns the sessions in the SpeakerStates.
func (r reportTimes) sessionView(
	at time.Time,
	states []*v1beta1.SpeakerState,
	notReady map[string]bool,
) *sessionView {
	v := &sessionView{
		byNode: map[string]map[string]v1beta1.SessionState{},
		silent: map[string]string{},
	}

	missedBy := map[string]int{}
	for _, state := range states {
		byPeer := map[string]v1beta1.SessionState{}
		v.byNode[state.Name] = byPeer
		if r.isStale(at, state.Name) {
			v.silent[state.Name] = fmt.Sprintf("its speaker has reported nothing for %.0f minutes", staleTime.Minutes())
			continue
		}

		for _, session := range state.Status.Sessions {
			byPeer[session.Peer] = session
		}

		for _, node := range missedNodes(state) {
			missedBy[node]++
		}
	}

	for node := range v.byNode {
		// A node that Kubernetes calls not ready is dead if another node misses it too, or if there is no other node.
		// If only its kubelet fails, its sessions are up.
		isConfirmed := missedBy[node] > 0 || len(states) == 1
		isDead := notReady[node] && isConfirmed
		isMissed := 2*missedBy[node] > len(states)
		if isMissed || isDead {
			v.silent[node] = "its speaker is not heard"
		}
	}

	return v
}

// missedNodes returns the other nodes whose speakers a speaker does not hear, without duplicates.
func missedNodes(state *v1beta1.SpeakerState) (out []string) {
	all := slices.Concat(state.Status.Unreachable, state.Status.Silent)
	for _, n := range all {
		if n.Node != state.Name && !slices.Contains(out, n.Node) {
			out = append(out, n.Node)
		}
	}

	return out
}

// nodesOf returns the nodes that should have a session with a peer, sorted: nodes with a speaker that the peer selects.
func (v *sessionView) nodesOf(p *lb.Peer, nodes map[string]lb.Node) []string {
	var out []string
	for name := range v.byNode {
		n, ok := nodes[name]
		if !ok {
			continue
		}

		isSelected := len(p.NodeSelectors) == 0 || lb.MatchesAny(p.NodeSelectors, n.Labels)
		if isSelected {
			out = append(out, name)
		}
	}

	slices.Sort(out)
	return out
}

// whyDown returns the reason why a node has no session with a peer; "" if it has one. hasFailed reports whether that is
// a failure: a first attempt to connect is none.
func (v *sessionView) whyDown(p *lb.Peer, node string) (cause string, hasFailed bool) {
	session, ok := v.byNode[node][p.Name]
	switch {
	case v.silent[node] != "":
		return v.silent[node], true
	case p.Unusable[node] != "":
		cause = fmt.Sprintf("%s: see the condition %s", p.Unusable[node], v1beta1.ConditionValid)
		return cause, true
	case ok && session.State == v1beta1.SessionStateEstablished:
		return "", false
	case !ok || session.LastError == "":
		return "it is connecting", false
	}

	return lb.Line(session.LastError, maxCauseLength), true
}

// peerSessions counts the sessions of a peer.
type peerSessions struct {
	up int
	// failures is the number of nodes whose session has failed.
	failures int
	// downBy has the nodes without a session, by the cause.
	downBy map[string][]string
	// partialBy has the nodes whose session does not carry all routes, by the cause.
	partialBy map[string][]string
}

// count counts the sessions of a peer on nodes.
func (v *sessionView) count(p *lb.Peer, nodes []string) peerSessions {
	s := peerSessions{
		downBy:    map[string][]string{},
		partialBy: map[string][]string{},
	}
	for _, node := range nodes {
		cause, hasFailed := v.whyDown(p, node)
		if hasFailed {
			s.failures++
		}

		if cause != "" {
			s.downBy[cause] = append(s.downBy[cause], node)
			continue
		}

		s.up++
		withheld := v.byNode[node][p.Name].Withheld
		if withheld != "" {
			withheld = lb.Line(withheld, maxCauseLength)
			s.partialBy[withheld] = append(s.partialBy[withheld], node)
		}
	}

	return s
}

// establishedCondition returns the condition Established of a peer, and the number of its sessions as "3/4". nodes
// should have a session.
func (v *sessionView) establishedCondition(p *lb.Peer, nodes []string) (count string, c metav1.Condition) {
	c.Type = v1beta1.ConditionEstablished
	if len(nodes) == 0 {
		c.Status = metav1.ConditionFalse
		c.Reason = string(lb.NoNodeSelected)
		c.Message = lb.WithRemedies("nodeSelectors select no node that has a speaker", lb.NoNodeSelected)
		return "0/0", c
	}

	s := v.count(p, nodes)
	reason := lb.SessionDown
	switch {
	case s.up == len(nodes):
		c.Status = metav1.ConditionTrue
		reason = lb.SessionEstablished
	case s.failures == 0:
		c.Status = metav1.ConditionUnknown
		reason = lb.SessionConnecting
	default:
		c.Status = metav1.ConditionFalse
	}

	c.Reason = string(reason)

	parts := []string{fmt.Sprintf("established on %d of %d nodes", s.up, len(nodes))}
	parts = append(parts, causes("not on ", s.downBy)...)
	parts = append(parts, causes("with less than it should carry on ", s.partialBy)...)
	c.Message = lb.WithRemedies(strings.Join(parts, "; "), reason)
	return fmt.Sprintf("%d/%d", s.up, len(nodes)), c
}

// causes lists the most frequent causes with their nodes, and the number of nodes with other causes. Each text begins
// with prefix.
func causes(prefix string, byCause map[string][]string) []string {
	order := slices.SortedFunc(maps.Keys(byCause), func(a, b string) int {
		byNumber := cmp.Compare(len(byCause[b]), len(byCause[a]))
		byNode := strings.Compare(byCause[a][0], byCause[b][0])
		return cmp.Or(byNumber, byNode)
	})

	var out []string
	others := 0
	for i, cause := range order {
		if i >= maxCauses {
			others += len(byCause[cause])
			continue
		}

		nodes := lb.SomeOf(byCause[cause])
		out = append(out, fmt.Sprintf("%s%s: %s", prefix, nodes, cause))
	}

	if others > 0 {
		out = append(out, fmt.Sprintf("%s%d more for other reasons", prefix, others))
	}

	return out
}

// peerStatus returns the desired status of a BGPPeer, given its condition Valid. What is not known stays as it is.
func (s *syncer) peerStatus(
	p *v1beta1.BGPPeer,
	d *syncRun,
	valid metav1.Condition,
) (count string, conditions []metav1.Condition) {
	conditions = []metav1.Condition{valid}
	i := slices.IndexFunc(d.state.Peers, func(wanted lb.Peer) bool {
		return wanted.Name == p.Name
	})
	if i < 0 {
		established := metav1.Condition{
			Type:    v1beta1.ConditionEstablished,
			Status:  metav1.ConditionFalse,
			Reason:  valid.Reason,
			Message: "no node has a session: the condition " + v1beta1.ConditionValid + " says why",
		}
		return "", append(conditions, established)
	}

	v := s.speakers.sessions
	if v == nil {
		return p.Status.Sessions, conditions
	}

	peer := &d.state.Peers[i]
	nodes := v.nodesOf(peer, d.state.Nodes)
	count, established := v.establishedCondition(peer, nodes)
	return count, append(conditions, established)
}
