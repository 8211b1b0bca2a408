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
	// mostCauses bounds the reasons that a BGPPeer names, and mostSaid the length of each, which routers may word.
	mostCauses = 3
	mostSaid   = 512
)

// sessions are those of all BGPPeers, as the SpeakerStates tell them.
type sessions struct {
	// byNode has the sessions of each node with a speaker, by the peers' names.
	byNode map[string]map[string]v1beta1.SessionState
	// silent says of nodes why their own report does not count.
	silent map[string]string
}

func (r reports) sessions(now time.Time, states []*v1beta1.SpeakerState, notReady map[string]bool) *sessions {
	v := &sessions{byNode: map[string]map[string]v1beta1.SessionState{}, silent: map[string]string{}}
	missed := map[string]int{}
	for _, state := range states {
		byPeer := map[string]v1beta1.SessionState{}
		v.byNode[state.Name] = byPeer
		if r.stale(now, state.Name) {
			v.silent[state.Name] = fmt.Sprintf("its speaker has reported nothing for %.0f minutes", staleTime.Minutes())
			continue
		}
		for _, session := range state.Status.Sessions {
			byPeer[session.Peer] = session
		}
		if len(state.Status.Unreachable)+len(state.Status.Silent) == 0 {
			continue // as mostly
		}
		once := map[string]bool{state.Name: true} // each has one voice, and none of itself
		for _, n := range slices.Concat(state.Status.Unreachable, state.Status.Silent) {
			if !once[n.Node] {
				once[n.Node] = true
				missed[n.Node]++
			}
		}
	}
	for node := range v.byNode {
		// A node that Kubernetes calls not ready is dead if another one misses it too, or there is no other one. If
		// only its kubelet is, its sessions live.
		dead := notReady[node] && (missed[node] > 0 || len(states) == 1)
		if 2*missed[node] > len(states) || dead {
			v.silent[node] = "its speaker is not heard"
		}
	}
	return v
}

// nodesOf returns the nodes that should have a session with a peer, sorted: those with a speaker that it selects.
func (v *sessions) nodesOf(p *lb.Peer, nodes map[string]lb.Node) []string {
	var out []string
	for name := range v.byNode {
		n, known := nodes[name]
		if known && (len(p.NodeSelectors) == 0 || lb.MatchesAny(p.NodeSelectors, n.Labels)) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// cause returns why a node has no session with a peer, and whether that is a failure: a session that only begins is
// none. It returns "" if there is a session.
func (v *sessions) cause(p *lb.Peer, node string) (why string, failed bool) {
	session, reported := v.byNode[node][p.Name]
	switch {
	case v.silent[node] != "":
		return v.silent[node], true
	case p.Unusable[node] != "":
		return fmt.Sprintf("%s: see the condition %s", p.Unusable[node], v1beta1.ConditionValid), true
	case reported && session.State == v1beta1.SessionStateEstablished:
		return "", false
	case !reported || session.LastError == "":
		return "it is connecting", false
	}
	return lb.Line(session.LastError, mostSaid), true
}

// peer returns what a peer says of its sessions, which these nodes should have.
func (v *sessions) peer(p *lb.Peer, nodes []string) (count string, c metav1.Condition) {
	c = metav1.Condition{
		Type:   v1beta1.ConditionEstablished,
		Status: metav1.ConditionTrue,
		Reason: string(lb.SessionEstablished),
	}
	if len(nodes) == 0 {
		c.Status, c.Reason = metav1.ConditionFalse, string(lb.NoNodeSelected)
		c.Message = lb.WithRemedies("nodeSelectors select no node that has a speaker", lb.NoNodeSelected)
		return "0/0", c
	}
	lacking, partial := map[string][]string{}, map[string][]string{}
	up, failures := 0, 0
	for _, node := range nodes {
		if cause, failed := v.cause(p, node); cause != "" {
			lacking[cause] = append(lacking[cause], node)
			if failed {
				failures++
			}
			continue
		}
		up++
		if withheld := v.byNode[node][p.Name].Withheld; withheld != "" {
			withheld = lb.Line(withheld, mostSaid)
			partial[withheld] = append(partial[withheld], node)
		}
	}
	switch {
	case up == len(nodes):
	case failures == 0:
		c.Status, c.Reason = metav1.ConditionUnknown, string(lb.SessionConnecting)
	default:
		c.Status, c.Reason = metav1.ConditionFalse, string(lb.SessionDown)
	}
	parts := []string{fmt.Sprintf("established on %d of %d nodes", up, len(nodes))}
	parts = append(parts, causes("not on ", lacking)...)
	parts = append(parts, causes("with less than it should carry on ", partial)...)
	c.Message = lb.WithRemedies(strings.Join(parts, "; "), lb.Reason(c.Reason))
	return fmt.Sprintf("%d/%d", up, len(nodes)), c
}

// causes says which nodes have each cause: the commonest ones, and how many nodes have others.
func causes(how string, byCause map[string][]string) []string {
	order := slices.SortedFunc(maps.Keys(byCause), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(byCause[b]), len(byCause[a])), strings.Compare(byCause[a][0], byCause[b][0]))
	})
	var out []string
	others := 0
	for i, cause := range order {
		if i >= mostCauses {
			others += len(byCause[cause])
			continue
		}
		out = append(out, fmt.Sprintf("%s%s: %s", how, lb.SomeOf(byCause[cause]), cause))
	}
	if others > 0 {
		out = append(out, fmt.Sprintf("%s%d more for other reasons", how, others))
	}
	return out
}

// peerStatus returns the status of a BGPPeer as it is to be, with this condition Valid. What is not known stays.
func (s *syncer) peerStatus(
	p *v1beta1.BGPPeer,
	d *decision,
	valid metav1.Condition,
) (count string, conditions []metav1.Condition) {
	conditions = []metav1.Condition{valid}
	i := slices.IndexFunc(d.state.Peers, func(wanted lb.Peer) bool { return wanted.Name == p.Name })
	if i < 0 {
		return "", append(conditions, metav1.Condition{
			Type: v1beta1.ConditionEstablished, Status: metav1.ConditionFalse, Reason: valid.Reason,
			Message: "no node has a session: the condition " + v1beta1.ConditionValid + " says why",
		})
	}
	v := s.speakers.sessions
	if v == nil {
		return p.Status.Sessions, conditions
	}
	count, established := v.peer(&d.state.Peers[i], v.nodesOf(&d.state.Peers[i], d.state.Nodes))
	return count, append(conditions, established)
}
