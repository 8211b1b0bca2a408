package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// stateInterval is the least time between two writes of changes that can wait, burstWait in a burst. If it is
	// longer, that is statePace for each living speaker: all together write at most a hundred times a second.
	stateInterval = time.Second
	statePace     = 10 * time.Millisecond
	// refreshInterval is the most time between two writes: it repairs a state that another client changed or deleted.
	refreshInterval = 10 * time.Minute
	// stateLook is the most time between two runs: a silence may have lasted long enough by then.
	stateLook = 10 * time.Second
	// writeTime bounds one write, so that a write to an API server that hangs is repeated.
	writeTime = 5 * time.Second
	// maxNetworks, maxConflicts, maxProblems, maxListed, maxProxied and maxFaults bound the lists in the state.
	maxNetworks  = 16
	maxConflicts = 32
	maxProblems  = 32
	maxListed    = 128
	maxProxied   = 4096
	maxFaults    = 512
)

// stateWriter keeps the SpeakerState of this node current.
type stateWriter struct {
	*reporter
	foreign foreign

	// silence is the part of the state that liveness wants written.
	silence liveness.Silence
	// written is the state that was last written, at this time; writtenSilence is its part from liveness.
	written        v1beta1.SpeakerStateStatus
	writtenSilence liveness.Silence
	at             time.Time
}

// writeState writes what changed: silence and its end at once, the rest after its interval.
func (w *stateWriter) writeState(ctx context.Context) (again time.Duration, err error) {
	if !w.cluster.Synced() || w.cluster.Uninstalling() {
		return 0, nil
	}
	if err := w.readFormer(ctx); err != nil {
		return 0, err
	}
	alive := w.liveness.Heard()
	if alive == nil {
		return 0, nil
	}
	now := time.Now()
	repeats := liveness.Repeats(w.node, alive)
	wasCutOff := w.silence.CutOff
	w.silence = w.liveness.Silence(repeats)
	// A node that does not hear the others may be one that they do not hear. They must read that it lives before they
	// write that its kernel does not answer.
	lives := w.silence.CutOff && !wasCutOff
	if !w.silence.Complete && !lives {
		return 0, nil // liveness kicks when all kernels had time to answer
	}
	early := func(changed bool) time.Duration {
		if lives {
			return 0
		}
		look := stateLook
		if w.pace.burst() {
			look = slowWait // it may end sooner
		}
		return min(look, w.interval(changed, len(alive), repeats)-now.Sub(w.at))
	}
	if wait := early(true); wait > 0 {
		return wait, nil // whether anything has changed or not
	}
	want := w.status(len(w.cluster.SpeakerAddresses()), len(alive))
	if wait := early(!same(want, w.written)); wait > 0 {
		return wait, nil
	}
	want.Observed = new(v1beta1.NewMicroTime(now))
	if err := w.send(ctx, want); err != nil {
		return 0, err
	}
	w.at = now
	return min(stateLook, w.interval(false, len(alive), repeats)), nil
}

func (w *stateWriter) send(ctx context.Context, s v1beta1.SpeakerStateStatus) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if err := w.cluster.WriteSpeakerState(ctx, w.node, s); err != nil {
		return err
	}
	if !slices.Equal(s.Unreachable, w.written.Unreachable) {
		nodes := []string{}
		for _, n := range s.Unreachable {
			nodes = append(nodes, n.Node)
		}
		w.log.Info("unreachable nodes", "nodes", nodes)
	}
	w.written, w.writtenSilence = s, w.silence
	return nil
}

// interval returns the least time between the last write and the next one, of a state that has changed or has not.
func (w *stateWriter) interval(changed bool, alive int, repeats bool) time.Duration {
	if w.at.IsZero() {
		return 0
	}
	next, changes := min(w.silence.Interval(w.writtenSilence, repeats), refreshInterval), stateInterval
	if w.pace.burst() {
		changes = burstWait
	}
	if changed {
		next = min(next, max(changes, statePace*time.Duration(alive)))
	}
	return next
}

// same reports whether two states differ in nothing but the time of their writing.
func same(a, b v1beta1.SpeakerStateStatus) bool {
	a.Observed, b.Observed = nil, nil
	return reflect.DeepEqual(a, b)
}

// status returns the state as it should be written.
func (w *stateWriter) status(expected, alive int) v1beta1.SpeakerStateStatus {
	out := v1beta1.SpeakerStateStatus{
		Version:     daemon.Version(),
		Members:     v1beta1.MemberCounts{Expected: int32(expected), Alive: int32(alive)},
		Unreachable: silentNodes(w.silence.Unreachable),
		Silent:      silentNodes(w.silence.Quiet),
		LinkFails:   w.silence.LinkFails,
	}
	state := w.layer2.State()
	out.Links = state.Links[:min(len(state.Links), maxListed)]
	subnets, gateways := w.layer2.Networks()
	out.Subnets, out.Gateways = firstTexts(subnets), firstTexts(gateways)
	for _, a := range state.Addresses {
		switch {
		case !a.Answered:
		case a.Address.Is4():
			out.Owned.IPv4++
		default:
			out.Owned.IPv6++
		}
		for _, c := range a.Conflicts {
			addConflict(&out, a.Address, c.MAC)
		}
	}
	for _, n := range w.foreign.find(w.syncer) {
		addConflict(&out, n.Address, n.MAC)
	}
	if last := w.last.Load(); last != nil {
		out.Problems = nodeProblems(last.Problems)
		for _, key := range last.Plan.Proxied[:min(len(last.Plan.Proxied), maxProxied)] {
			out.Proxied = append(out.Proxied, key.String())
		}
	}
	sessions := w.bgp.Sessions()
	awaited, _ := w.sessions.left(sessions)
	faults := w.proxies.Faults()
	for _, key := range slices.SortedFunc(maps.Keys(faults), lb.Key.Compare)[:min(len(faults), maxFaults)] {
		out.ProxyFaults = append(
			out.ProxyFaults,
			v1beta1.ProxyFault{Service: key.String(), Reason: string(faults[key])},
		)
	}
	out.Sessions, out.SessionsEstablished = mark(sessionStates(sessions), awaited), establishedOf(sessions)
	return out
}

// firstTexts returns the first networks, as the state has them.
func firstTexts[T fmt.Stringer](of []T) (out []string) {
	for _, one := range of[:min(len(of), maxNetworks)] {
		out = append(out, one.String())
	}
	return out
}

// addConflict adds an address of a pool that a foreign machine has. An address is unassigned or announced, never both,
// but the two were read at different times.
func addConflict(s *v1beta1.SpeakerStateStatus, a netip.Addr, mac lb.MAC) {
	c := v1beta1.AddressConflict{Address: a.String(), MAC: mac.String()}
	if slices.ContainsFunc(s.Conflicts, func(o v1beta1.AddressConflict) bool { return o.Address == c.Address }) {
		return
	}
	if s.ConflictCount++; len(s.Conflicts) < maxConflicts {
		s.Conflicts = append(s.Conflicts, c)
	}
}

// nodeProblems returns the problems as the state has them.
func nodeProblems(problems []lb.Problem) (out []v1beta1.NodeProblem) {
	for _, p := range problems[:min(len(problems), maxProblems)] {
		out = append(out, v1beta1.NodeProblem{Reason: string(p.Reason), Message: lb.WithRemedies(p.Message, p.Reason)})
	}
	return out
}

func silentNodes(nodes []liveness.SilentNode) (out []v1beta1.SilentNode) {
	for _, n := range nodes {
		out = append(out, v1beta1.SilentNode{Node: n.Node, Since: v1beta1.NewMicroTime(n.Since)})
	}
	return out
}

// votes reads the SpeakerStates of other speakers, for liveness.Config.
type votes struct{ *k8s.Cluster }

// Vote implements liveness.Cluster.
func (s votes) Vote(ctx context.Context, node string) (liveness.Vote, error) {
	state, err := s.SpeakerState(ctx, node)
	switch {
	case !apiReached(err):
		return liveness.Vote{}, fmt.Errorf("%w: %w", liveness.ErrAway, err)
	case err != nil:
		return liveness.Vote{}, err
	}
	wrote := state.Status
	vote := liveness.Vote{
		Alive:     int(wrote.Members.Alive),
		Expected:  int(wrote.Members.Expected),
		LinkFails: wrote.LinkFails,
	}
	if wrote.Observed != nil && !wrote.Observed.IsZero() {
		vote.Written = wrote.Observed.String()
	}
	for _, n := range slices.Concat(wrote.Unreachable, wrote.Silent) {
		vote.Misses = append(vote.Misses, n.Node)
	}
	return vote, nil
}

// apiReached reports whether the result of a request shows that the network reaches the API server. A refusal does;
// a server error does not, since it may come from a proxy on this node.
func apiReached(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}
