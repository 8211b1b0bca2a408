package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// sessionsPace is the least time between two changes of what one BGPPeer says: each is sent to every node, and when a
	// router dies a thousand speakers report it one after another.
	sessionsPace = 10 * time.Second
	// mostCauses bounds the reasons that a BGPPeer names, and mostSaid the length of each, which routers may word.
	mostCauses = 3
	mostSaid   = 512
)

// sessions are those of all BGPPeers, as the SpeakerStates tell them.
type sessions struct {
	reports reports
	// changed is when what each peer says last changed.
	changed map[string]time.Time
	// wanted is what the last run of the assignment read.
	wanted atomic.Pointer[wantedSessions]
	// said is what the peers say, by name; nil before it is known.
	said atomic.Pointer[map[string]peerSays]
}

// wantedSessions are the usable peers, and the nodes.
type wantedSessions struct {
	peers []lb.Peer
	nodes map[string]lb.Node
}

// peerSays is what a BGPPeer says of its sessions.
type peerSays struct {
	// count is as in BGPPeerStatus.Sessions.
	count     string
	condition metav1.Condition
}

// forget is called when this replica stops leading.
func (s *sessions) forget() {
	s.reports, s.changed = nil, nil
	s.said.Store(nil)
}

// refresh takes what all speakers report and which nodes Kubernetes does not call ready. It reports whether a peer is to say
// something else than before.
func (s *sessions) refresh(now time.Time, states []*v1beta1.SpeakerState, notReady map[string]bool) (changed bool) {
	s.reports = s.reports.read(now, states)
	wanted := s.wanted.Load()
	if wanted == nil {
		return false
	}
	var before map[string]peerSays
	if last := s.said.Load(); last != nil {
		before = *last
	}
	v := s.view(now, states, notReady)
	said, at := map[string]peerSays{}, map[string]time.Time{}
	for i := range wanted.peers {
		p := &wanted.peers[i]
		old, known := before[p.Name]
		says := v.peer(p, v.nodesOf(p, wanted.nodes))
		switch {
		case known && says == old, known && now.Sub(s.changed[p.Name]) < sessionsPace:
			said[p.Name], at[p.Name] = old, s.changed[p.Name]
		default:
			said[p.Name], at[p.Name], changed = says, now, true
		}
	}
	s.changed = at
	s.said.Store(&said)
	return changed
}

// sessionsView is what all speakers report, for one look at all peers.
type sessionsView struct {
	// byNode has the sessions of each node with a speaker, by the peers' names.
	byNode map[string]map[string]v1beta1.SessionState
	// silent says of nodes why their own report does not count.
	silent map[string]string
}

func (s *sessions) view(now time.Time, states []*v1beta1.SpeakerState, notReady map[string]bool) sessionsView {
	v := sessionsView{byNode: map[string]map[string]v1beta1.SessionState{}, silent: map[string]string{}}
	missed := map[string]int{}
	for _, state := range states {
		byPeer := map[string]v1beta1.SessionState{}
		v.byNode[state.Name] = byPeer
		if s.reports.stale(now, state.Name) {
			v.silent[state.Name] = fmt.Sprintf("its speaker has reported nothing for %.0f minutes", staleTime.Minutes())
			continue
		}
		for _, session := range state.Status.Sessions {
			byPeer[session.Peer] = session
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
		// A node that Kubernetes calls not ready is dead if another one misses it too, or there is no other one. If only its
		// kubelet is, its sessions live.
		dead := notReady[node] && (missed[node] > 0 || len(states) == 1)
		if 2*missed[node] > len(states) || dead {
			v.silent[node] = "its speaker is not heard"
		}
	}
	return v
}

// nodesOf returns the nodes that should have a session with a peer, sorted: those with a speaker that it selects.
func (v sessionsView) nodesOf(p *lb.Peer, nodes map[string]lb.Node) []string {
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

// cause returns why a node has no session with a peer, and whether that is a failure: a session that only begins is none. It returns ""
// if there is a session.
func (v sessionsView) cause(p *lb.Peer, node string) (why string, failed bool) {
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
func (v sessionsView) peer(p *lb.Peer, nodes []string) peerSays {
	c := metav1.Condition{Type: v1beta1.ConditionEstablished, Status: metav1.ConditionTrue, Reason: string(lb.SessionEstablished)}
	if len(nodes) == 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(lb.NoNodeSelected), "nodeSelectors select no node that has a speaker"
		return peerSays{"0/0", c}
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
	c.Message = k8s.Bounded(strings.Join(parts, "; "))
	return peerSays{fmt.Sprintf("%d/%d", up, len(nodes)), c}
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

// status returns the status of a BGPPeer as it is to be, with this condition Valid. What is not known stays.
func (s *sessions) status(p *v1beta1.BGPPeer, valid metav1.Condition) (count string, conditions []metav1.Condition) {
	conditions = []metav1.Condition{valid}
	wanted, said := s.wanted.Load(), s.said.Load()
	if !slices.ContainsFunc(wanted.peers, func(w lb.Peer) bool { return w.Name == p.Name }) {
		return "", append(conditions, metav1.Condition{
			Type: v1beta1.ConditionEstablished, Status: metav1.ConditionFalse, Reason: valid.Reason,
			Message: "no node has a session: the condition " + v1beta1.ConditionValid + " says why",
		})
	}
	if said == nil {
		return p.Status.Sessions, conditions
	}
	says, known := (*said)[p.Name]
	if !known {
		return p.Status.Sessions, conditions
	}
	return says.count, append(conditions, says.condition)
}
