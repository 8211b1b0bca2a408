package report

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// stateInterval is the least time between two writes of changes that can wait; in a burst it is burstWait.
	stateInterval = time.Second
	// statePace, for each living speaker, is the interval if it is longer: all speakers together write at most a
	// hundred times a second.
	statePace = 10 * time.Millisecond
	// refreshInterval is the most time between two writes: it repairs a state that another client changed or deleted.
	refreshInterval = 10 * time.Minute
	// stateResync is the most time between two runs: a silence may have lasted long enough by then.
	stateResync = 10 * time.Second
	// writeTime bounds one request, so that a request to an API server that hangs is repeated.
	writeTime = 5 * time.Second
	// maxNetworks, maxConflicts, maxProblems, maxClosings, maxListed, maxProxied and maxFaults bound the lists in the
	// state.
	maxNetworks  = 16
	maxConflicts = 32
	maxProblems  = 32
	maxClosings  = 32
	maxListed    = 128
	maxProxied   = 4096
	maxFaults    = 512
	// maxClosing bounds the message about a Service in bytes.
	maxClosing = 512
)

// stateWriter writes the SpeakerState of this node. The goroutine of its loop alone uses it.
type stateWriter struct {
	Config
	last *lastStanding
	// inBurst reports whether many Services are getting addresses.
	inBurst  func() bool
	sessions *sessionGate
	foreign  foreign

	// silence is the part of the state that comes from liveness.
	silence liveness.Silence
	// written is the last written state, writtenSilence its part from liveness, and writtenAt the time of the write.
	written        v1beta1.SpeakerStateStatus
	writtenSilence liveness.Silence
	writtenAt      time.Time
}

// sync writes a state that has changed: silence and its end at once, the rest after its interval.
func (w *stateWriter) sync(ctx context.Context) (again time.Duration, err error) {
	if !w.Cluster.Synced() || w.Cluster.Uninstalling() {
		return 0, nil
	}
	if err := w.readFormer(ctx); err != nil {
		return 0, err
	}
	alive := w.Liveness.Heard()
	if alive == nil {
		return 0, nil
	}

	began := time.Now()
	repeats := liveness.Repeats(w.Node, alive)
	wasCutOff := w.silence.CutOff
	w.silence = w.Liveness.Silence(repeats)
	// The others may not hear a node that does not hear them. They must read that it is alive before they write that its
	// kernel does not answer.
	isUrgent := w.silence.CutOff && !wasCutOff
	if !w.silence.Complete && !isUrgent {
		return 0, nil // liveness kicks when all kernels had time to answer
	}

	tooEarly := func(changed bool) time.Duration {
		if isUrgent {
			return 0
		}
		resync := stateResync
		if w.inBurst() {
			resync = slowWait // it may end sooner
		}
		return min(resync, w.interval(changed, len(alive), repeats)-began.Sub(w.writtenAt))
	}
	wait := tooEarly(true)
	if wait > 0 {
		return wait, nil // whether anything has changed or not
	}

	want := w.status(len(w.Cluster.SpeakerAddresses()), len(alive))
	wait = tooEarly(!sameStatus(want, w.written))
	if wait > 0 {
		return wait, nil
	}

	want.Observed = new(v1beta1.NewMicroTime(began))
	if err := w.send(ctx, want); err != nil {
		return 0, err
	}
	w.writtenAt = began
	return min(stateResync, w.interval(false, len(alive), repeats)), nil
}

// readFormer reads the state of the former speaker of the node, once and before this speaker writes it.
func (w *stateWriter) readFormer(ctx context.Context) error {
	_, known := w.sessions.remaining(nil)
	if known {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	state, err := w.Cluster.SpeakerState(ctx, w.Node)
	if apierrors.IsNotFound(err) {
		state, err = &v1beta1.SpeakerState{}, nil
	}
	if err != nil {
		return err
	}
	w.sessions.await(state.Status.Sessions)
	return nil
}

// send writes a state, and logs which nodes are unreachable if that has changed.
func (w *stateWriter) send(ctx context.Context, s v1beta1.SpeakerStateStatus) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if err := w.Cluster.WriteSpeakerState(ctx, w.Node, s); err != nil {
		return err
	}
	if !slices.Equal(s.Unreachable, w.written.Unreachable) {
		nodes := []string{}
		for _, n := range s.Unreachable {
			nodes = append(nodes, n.Node)
		}
		w.Log.Info("unreachable nodes", "nodes", nodes)
	}
	w.written, w.writtenSilence = s, w.silence
	return nil
}

// interval returns the least time between the last write and the next one. Changed reports whether the state has
// changed, and repeats whether this node writes for others what it hears.
func (w *stateWriter) interval(changed bool, alive int, repeats bool) time.Duration {
	if w.writtenAt.IsZero() {
		return 0
	}

	next, changes := min(w.silence.Interval(w.writtenSilence, repeats), refreshInterval), stateInterval
	if w.inBurst() {
		changes = burstWait
	}
	if changed {
		next = min(next, max(changes, statePace*time.Duration(alive)))
	}
	return next
}

// sameStatus reports whether two states are equal but for the time of their writing.
func sameStatus(a, b v1beta1.SpeakerStateStatus) bool {
	a.Observed, b.Observed = nil, nil

	return reflect.DeepEqual(a, b)
}

// status returns the state as it should be written. Expected and alive count the speakers of the cluster.
func (w *stateWriter) status(expected, alive int) v1beta1.SpeakerStateStatus {
	out := v1beta1.SpeakerStateStatus{
		Version:     daemon.Version(),
		KeysVersion: w.KeysVersion(),
		Members:     v1beta1.MemberCounts{Expected: int32(expected), Alive: int32(alive)},
		Unreachable: silentNodes(w.silence.Unreachable),
		Silent:      silentNodes(w.silence.Quiet),
		LinkFails:   w.silence.LinkFails,
	}
	w.addAddresses(&out)

	if last := w.last.Load(); last != nil {
		out.Problems = nodeProblems(last.Problems)
		out.EgressClosed, out.EgressClosedCount = closedEgress(last.Closings), int32(len(last.Closings))
		for _, key := range last.Plan.Proxied[:min(len(last.Plan.Proxied), maxProxied)] {
			out.Proxied = append(out.Proxied, key.String())
		}
	}

	faults := w.ProxyFaults()
	for _, key := range slices.SortedFunc(maps.Keys(faults), lb.Key.Compare)[:min(len(faults), maxFaults)] {
		fault := v1beta1.ProxyFault{Service: key.String(), Reason: string(faults[key])}
		out.ProxyFaults = append(out.ProxyFaults, fault)
	}

	sessions := w.Sessions()
	awaited, _ := w.sessions.remaining(sessions)
	out.Sessions = markAwaited(sessionStates(sessions), awaited)
	out.SessionsEstablished = establishedOf(sessions)
	return out
}

// addAddresses adds the links of this node, their networks, the number of owned addresses, and the addresses in
// conflict.
func (w *stateWriter) addAddresses(out *v1beta1.SpeakerStateStatus) {
	state := w.Layer2.State()
	out.Links = state.Links[:min(len(state.Links), maxListed)]
	subnets, gateways := w.Layer2.Networks()
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
			addConflict(out, a.Address, c.MAC)
		}
	}
	for _, n := range w.foreign.find(&w.Config, w.last.Load()) {
		addConflict(out, n.Address, n.MAC)
	}
}

// firstTexts returns the texts of the first networks, of which the state has maxNetworks.
func firstTexts[T fmt.Stringer](of []T) (out []string) {
	for _, one := range of[:min(len(of), maxNetworks)] {
		out = append(out, one.String())
	}
	return out
}

// addConflict adds an address of a pool that a foreign machine has. It skips an address that is there already: an
// address is unassigned or announced, but both were read at different times.
func addConflict(s *v1beta1.SpeakerStateStatus, a netip.Addr, mac lb.MAC) {
	c := v1beta1.AddressConflict{Address: a.String(), MAC: mac.String()}
	if slices.ContainsFunc(s.Conflicts, func(o v1beta1.AddressConflict) bool { return o.Address == c.Address }) {
		return
	}

	s.ConflictCount++
	if len(s.Conflicts) < maxConflicts {
		s.Conflicts = append(s.Conflicts, c)
	}
}

// nodeProblems returns the first problems with their remedies.
func nodeProblems(problems []lb.Problem) (out []v1beta1.NodeProblem) {
	for _, p := range problems[:min(len(problems), maxProblems)] {
		out = append(out, v1beta1.NodeProblem{Reason: string(p.Reason), Message: lb.WithRemedies(p.Message, p.Reason)})
	}
	return out
}

// closedEgress returns the first Services of whose pods the node rejects outgoing connections.
func closedEgress(closings []lb.EgressClosing) (out []v1beta1.ClosedEgress) {
	for _, c := range closings[:min(len(closings), maxClosings)] {
		out = append(out, v1beta1.ClosedEgress{
			Service:      c.Service.String(),
			PodAddresses: int32(c.Addresses),
			Message:      lb.Line(c.Why, maxClosing),
		})
	}
	return out
}

// silentNodes returns nodes that do not answer as the state has them.
func silentNodes(nodes []liveness.SilentNode) (out []v1beta1.SilentNode) {
	for _, n := range nodes {
		out = append(out, v1beta1.SilentNode{Node: n.Node, Since: v1beta1.NewMicroTime(n.Since)})
	}
	return out
}
