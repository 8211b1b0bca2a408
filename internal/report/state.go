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
	// stateInterval is the minimum time between two writes of changes that can wait; in a burst it is burstWait.
	stateInterval = time.Second
	// statePace is the minimum interval for each living speaker: all speakers together write at most a hundred times a
	// second.
	statePace = 10 * time.Millisecond
	// refreshInterval is the maximum time between two writes. It repairs a state that another client changed or
	// deleted.
	refreshInterval = 10 * time.Minute
	// stateResync is the maximum time between two runs, because a node may have been silent long enough by then.
	stateResync = 10 * time.Second
	// writeTime bounds one request, so that a request to an API server that hangs is repeated.
	writeTime = 5 * time.Second
)

// These constants bound the lists in the state.
const (
	maxNetworks  = 16
	maxConflicts = 32
	maxProblems  = 32
	maxClosings  = 32
	maxListed    = 128
	maxProxied   = 4096
	maxFaults    = 512
)

// maxClosing bounds the message about a Service in bytes.
const maxClosing = 512

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
	// written is the last written state.
	written v1beta1.SpeakerStateStatus
	// writtenSilence is the part of written that comes from liveness.
	writtenSilence liveness.Silence
	// writtenAt is the time of the last write.
	writtenAt time.Time
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
	// The others may not hear a node that does not hear them. They must read that it is alive before they write that
	// its kernel does not answer.
	isUrgent := w.silence.CutOff && !wasCutOff
	if !w.silence.Complete && !isUrgent {
		return 0, nil // liveness kicks when all kernels had time to answer
	}

	waitFor := func(hasChanged bool) time.Duration {
		if isUrgent {
			return 0
		}

		resync := stateResync
		if w.inBurst() {
			resync = slowWait // the burst may end sooner
		}

		next := w.interval(hasChanged, len(alive), repeats) - began.Sub(w.writtenAt)
		return min(resync, next)
	}

	wait := waitFor(true)
	if wait > 0 {
		return wait, nil // too early, whether anything has changed or not
	}

	want := w.status(len(w.Cluster.SpeakerAddresses()), len(alive))
	hasChanged := !sameStatus(want, w.written)
	wait = waitFor(hasChanged)
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
		state = &v1beta1.SpeakerState{}
		err = nil
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

	w.written = s
	w.writtenSilence = w.silence
	return nil
}

// interval returns the minimum time between the last write and the next one. hasChanged reports whether the state has
// changed, and repeats whether this node writes what it hears for other nodes. alive is the number of living speakers.
func (w *stateWriter) interval(hasChanged bool, alive int, repeats bool) time.Duration {
	if w.writtenAt.IsZero() {
		return 0
	}

	next := min(w.silence.Interval(w.writtenSilence, repeats), refreshInterval)
	if !hasChanged {
		return next
	}

	interval := stateInterval
	if w.inBurst() {
		interval = burstWait
	}

	interval = max(interval, statePace*time.Duration(alive))
	return min(next, interval)
}

// sameStatus reports whether two states differ at most in the time of their writing.
func sameStatus(a, b v1beta1.SpeakerStateStatus) bool {
	a.Observed = nil
	b.Observed = nil

	return reflect.DeepEqual(a, b)
}

// status returns the desired state. expected and alive count the speakers of the cluster.
func (w *stateWriter) status(expected, alive int) v1beta1.SpeakerStateStatus {
	out := v1beta1.SpeakerStateStatus{
		Version:     daemon.Version(),
		KeysVersion: w.KeysVersion(),
		Members: v1beta1.MemberCounts{
			Expected: int32(expected),
			Alive:    int32(alive),
		},
		Unreachable: silentNodes(w.silence.Unreachable),
		Silent:      silentNodes(w.silence.Quiet),
		LinkFails:   w.silence.LinkFails,
	}
	w.addAddresses(&out)

	last := w.last.Load()
	if last != nil {
		out.Problems = nodeProblems(last.Problems)
		out.EgressClosed = closedEgress(last.Closings)
		out.EgressClosedCount = int32(len(last.Closings))
		for _, key := range firstOf(last.Plan.Proxied, maxProxied) {
			out.Proxied = append(out.Proxied, key.String())
		}
	}

	out.ProxyFaults = proxyFaults(w.ProxyFaults())

	sessions := w.Sessions()
	awaited, _ := w.sessions.remaining(sessions)
	out.Sessions = markAwaited(sessionStates(sessions), awaited)
	out.SessionsEstablished = establishedOf(sessions)
	return out
}

// firstOf returns the first items of a list, at most n.
func firstOf[T any](list []T, n int) []T {
	return list[:min(len(list), n)]
}

// proxyFaults returns the first faults by Service.
func proxyFaults(faults map[lb.Key]lb.Reason) (out []v1beta1.ProxyFault) {
	keys := slices.SortedFunc(maps.Keys(faults), lb.Key.Compare)
	for _, key := range firstOf(keys, maxFaults) {
		out = append(out, v1beta1.ProxyFault{
			Service: key.String(),
			Reason:  string(faults[key]),
		})
	}

	return out
}

// addAddresses adds the links of this node, their networks, the number of owned addresses, and the addresses in
// conflict.
func (w *stateWriter) addAddresses(out *v1beta1.SpeakerStateStatus) {
	state := w.Layer2.State()
	out.Links = firstOf(state.Links, maxListed)
	subnets, gateways := w.Layer2.Networks()
	out.Subnets = firstTexts(subnets)
	out.Gateways = firstTexts(gateways)

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

// firstTexts returns the first networks as texts.
func firstTexts[T fmt.Stringer](networks []T) (out []string) {
	for _, n := range firstOf(networks, maxNetworks) {
		out = append(out, n.String())
	}
	return out
}

// addConflict adds an address of a pool that a foreign machine has. It skips an address that the state has already:
// announced addresses and unassigned ones were read at different times.
func addConflict(s *v1beta1.SpeakerStateStatus, a netip.Addr, mac lb.MAC) {
	c := v1beta1.AddressConflict{Address: a.String(), MAC: mac.String()}
	hasAddress := func(o v1beta1.AddressConflict) bool { return o.Address == c.Address }
	if slices.ContainsFunc(s.Conflicts, hasAddress) {
		return
	}

	s.ConflictCount++
	if len(s.Conflicts) < maxConflicts {
		s.Conflicts = append(s.Conflicts, c)
	}
}

// nodeProblems returns the first problems with their remedies.
func nodeProblems(problems []lb.Problem) (out []v1beta1.NodeProblem) {
	for _, p := range firstOf(problems, maxProblems) {
		out = append(out, v1beta1.NodeProblem{
			Reason:  string(p.Reason),
			Message: lb.WithRemedies(p.Message, p.Reason),
		})
	}

	return out
}

// closedEgress returns the first Services whose pods' outgoing connections the node rejects.
func closedEgress(closings []lb.EgressClosing) (out []v1beta1.ClosedEgress) {
	for _, c := range firstOf(closings, maxClosings) {
		out = append(out, v1beta1.ClosedEgress{
			Service:      c.Service.String(),
			PodAddresses: int32(c.Addresses),
			Message:      lb.Line(c.Why, maxClosing),
		})
	}

	return out
}

// silentNodes converts nodes that do not answer to their form in the state.
func silentNodes(nodes []liveness.SilentNode) (out []v1beta1.SilentNode) {
	for _, n := range nodes {
		out = append(out, v1beta1.SilentNode{
			Node:  n.Node,
			Since: v1beta1.NewMicroTime(n.Since),
		})
	}

	return out
}
