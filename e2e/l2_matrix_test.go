//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// promised is the longest outage of a client at any fault.
	promised = 500 * time.Millisecond
	// hold is the least duration of a fault that does not end by itself.
	hold = 3 * time.Second
)

// fault is one row of the matrix.
type fault struct {
	name string
	// hit injects the fault at the owner of the addresses, repair ends it.
	hit, repair func(t *testing.T, s *stage, owner string)
	// mustNotFail reports that no probe may fail, neither at the beginning of the fault nor at its end.
	mustNotFail bool
	// duration is the time from hit to repair.
	duration time.Duration
	// isPlanned reports that the test keeps connections open and counts how many survive. mustStay reports
	// that the address does not move, so all of them must survive.
	isPlanned, mustStay bool
	// alwaysRuns reports that the row is part of every run. The whole matrix takes more than a quarter of an hour.
	alwaysRuns bool
}

var faults = []fault{
	{name: "drain", hit: drain, repair: uncordon, mustNotFail: true, isPlanned: true, alwaysRuns: true},
	{name: "exclusion label", hit: setLabel(`""`), repair: setLabel("null"), mustNotFail: true, isPlanned: true},
	{name: "advertisement edited", hit: excludeOwner, repair: includeOwner, mustNotFail: true, isPlanned: true},
	{name: "rolling update", hit: rollOut, mustNotFail: true, isPlanned: true},
	{name: "speaker's pod deleted", hit: deleteSpeaker, mustNotFail: true, isPlanned: true, alwaysRuns: true},
	{name: "speaker killed", hit: killSpeaker, mustNotFail: true, isPlanned: true, mustStay: true, alwaysRuns: true},
	{name: "power-off of the owner", hit: powerOff, repair: powerOn, alwaysRuns: true},
	{name: "link of the owner down", hit: setLink(false), repair: setLink(true), duration: hold},
	{name: "owner frozen", hit: freeze, repair: thaw, duration: hold},
	{name: "partition, the owner alone", hit: partitionOwner, repair: heal, duration: hold},
	{name: "partition, another node alone", hit: partitionOther, repair: heal, duration: hold},
	{name: "gossip port of the owner blocked", hit: block(membersPort), repair: heal, mustNotFail: true, duration: hold},
	{name: "heartbeat port of the owner blocked", hit: block(heartbeatPort), repair: heal, duration: hold},
	{name: "both ports of the owner blocked", hit: block(membersPort, heartbeatPort), repair: heal, duration: hold},
	{name: "API server down, then power-off", hit: withoutAPI, repair: withAPI},
	{name: "no controller, then power-off", hit: withoutControllers, repair: withControllers},
	{name: "two nodes at once", hit: powerOffBoth, repair: powerOnBoth},
}

// testL2Matrix injects one fault after the other, and logs what a client saw of it:
// with -matrix all faults, with the promised limits; else some, with limits for a
// busy machine.
func testL2Matrix(t *testing.T, e *env) {
	e.injects(t, func(f fault) bool { return f.alwaysRuns || *matrix })
}

// injects injects the selected faults, one after the other.
func (e *env) injects(t *testing.T, isSelected func(fault) bool) {
	s := newStage(t, e)
	for _, f := range faults {
		if isSelected(f) {
			t.Run(f.name, func(t *testing.T) { s.run(t, f) })
		}
	}
	// A drain may have moved all pods of the application to one node.
	_, err := e.Kubectl(t.Context(), "-n", e.app.Namespace, "rollout", "restart", "deployment/"+e.app.Name)
	must(t, err)
	must(t, e.Deploy(t.Context(), e.app))
}

// run injects one fault.
func (s *stage) run(t *testing.T, f fault) {
	if *matrix {
		must(t, s.env.Calm(t.Context()))
	}
	owner, err := s.Stage.Owner(t.Context())
	must(t, err)
	t.Cleanup(func() { s.repair(t) })
	claims, err := s.env.Claims(t.Context(), testbed.Client, 20*time.Millisecond, s.Addresses...)
	must(t, err)
	w := s.watch(t)
	survived := s.keep(t, f)
	hit := time.Now()
	f.hit(t, s, owner)
	must(t, w.Recovered(t.Context(), time.Minute))
	survived()
	must(t, testbed.Holds(t.Context(), max(0, f.duration-time.Since(hit)), func(context.Context) error { return nil }))
	repairedAt := time.Now()
	if f.repair != nil {
		f.repair(t, s, owner)
	}
	must(t, s.env.WaitReady(t.Context()))
	must(t, w.Recovered(t.Context(), time.Minute))
	seen, err := w.Stop()
	must(t, err)
	frames, err := claims.Stop()
	must(t, err)

	during, after := between(seen, hit, repairedAt), between(seen, repairedAt, time.Now())
	t.Logf("matrix: %s: %s; two answered for %d ms", f.name, during, s.shared(frames).Milliseconds())
	t.Logf("matrix: %s, repaired: %s; the last other answer came %d ms later", f.name, after,
		s.settledAfter(frames, repairedAt).Milliseconds())
	limit := promised
	if !*matrix {
		limit = 5 * promised
	}
	switch {
	case f.mustNotFail && *matrix && during.failed+after.failed > 0:
		t.Errorf("%d probes failed, where none had to", during.failed+after.failed)
	case during.gap > limit:
		t.Errorf("no answer for %s, promised are %s", during.gap, promised)
	}
	s.agreed(t)
}

// agreed checks that the client's neighbour entries name the node that answers.
func (s *stage) agreed(t *testing.T) {
	t.Helper()
	for _, a := range s.Addresses {
		must(t, testbed.Until(t.Context(), time.Second,
			"the client to know the owner of "+a.String(), func(ctx context.Context) error {
				known, err := s.env.Owner(ctx, testbed.Client, a)
				if err == nil && !slices.Contains(s.workers(), known) {
					err = fmt.Errorf("it is %s", known)
				}
				return err
			}))
	}
}

// repair ends every fault, whatever the state of the cluster.
func (e *env) repair(t *testing.T) {
	ctx := context.Background()
	errs := []error{e.Cluster.Heal(ctx), e.signalAPI(ctx, "CONT")}
	for _, n := range e.workers() {
		_ = e.Cluster.Thaw(ctx, n) // fails if the node is off
		e.ensureOn(t, n)
		if t.Failed() {
			_, err := e.Kubectl(ctx, "uncordon", n)
			_, err2 := e.Kubectl(ctx, "label", "node", n, "node.kubernetes.io/exclude-from-external-load-balancers-")
			errs = append(errs, err, err2)
		}
	}
	errs = append(errs, e.WaitReady(ctx))
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// signalAPI sends a signal to the API server. STOP takes it away: its supervisor would restart a killed one.
func (e *env) signalAPI(ctx context.Context, signal string) error {
	return e.do(ctx, e.Cluster.Nodes()[0], "pkill", "-"+signal, "-x", "kube-apiserver")
}

func powerOff(t *testing.T, s *stage, owner string) {
	must(t, s.env.Cluster.PowerOff(t.Context(), owner))
}

func powerOn(t *testing.T, s *stage, owner string) {
	start := time.Now()
	must(t, s.env.Cluster.PowerOn(t.Context(), owner))
	must(t, s.env.WaitNode(t.Context(), owner, start))
}

func powerOffBoth(t *testing.T, s *stage, _ string) {
	for _, n := range s.Announcers {
		powerOff(t, s, n)
	}
}

func powerOnBoth(t *testing.T, s *stage, _ string) {
	for _, n := range s.Announcers {
		powerOn(t, s, n)
	}
}

func setLink(up bool) func(*testing.T, *stage, string) {
	return func(t *testing.T, s *stage, owner string) {
		must(t, s.env.Cluster.SetLink(t.Context(), owner, testbed.LAN, up))
	}
}

func freeze(t *testing.T, s *stage, owner string) { must(t, s.env.Cluster.Freeze(t.Context(), owner)) }

func thaw(t *testing.T, s *stage, owner string) { must(t, s.env.Cluster.Thaw(t.Context(), owner)) }

// partitionOwner separates the owner from all other nodes; the client reaches both sides.
func partitionOwner(t *testing.T, s *stage, owner string) {
	must(t, s.env.Cluster.Partition(t.Context(), []string{owner}, but(s.env.Cluster.Nodes(), owner)))
}

func partitionOther(t *testing.T, s *stage, owner string) { partitionOwner(t, s, s.Other(owner)) }

func block(ports ...uint16) func(*testing.T, *stage, string) {
	return func(t *testing.T, s *stage, owner string) {
		must(t, s.env.Cluster.Block(t.Context(), owner, ports...))
	}
}

func heal(t *testing.T, s *stage, _ string) { must(t, s.env.Cluster.Heal(t.Context())) }

func withoutAPI(t *testing.T, s *stage, owner string) {
	must(t, s.signalAPI(t.Context(), "STOP"))
	powerOff(t, s, owner)
}

func withAPI(t *testing.T, s *stage, owner string) {
	must(t, s.signalAPI(t.Context(), "CONT"))
	powerOn(t, s, owner)
}

func withoutControllers(t *testing.T, s *stage, owner string) {
	t.Cleanup(func() { s.scaleController(t, 2) })
	s.scaleController(t, 0)
	powerOff(t, s, owner)
}

func withControllers(t *testing.T, s *stage, owner string) {
	powerOn(t, s, owner)
	s.scaleController(t, 2)
}

func drain(t *testing.T, s *stage, owner string) {
	_, err := s.env.Kubectl(t.Context(), "drain", owner, "--ignore-daemonsets", "--force", "--delete-emptydir-data",
		"--timeout=60s")
	must(t, err)
}

func uncordon(t *testing.T, s *stage, owner string) {
	_, err := s.env.Kubectl(t.Context(), "uncordon", owner)
	must(t, err)
}

// setLabel sets the label that excludes a node from external load balancers; null removes it.
func setLabel(value string) func(*testing.T, *stage, string) {
	return func(t *testing.T, s *stage, owner string) {
		patch := `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":` + value + `}}}`
		_, err := s.env.Kube.CoreV1().Nodes().Patch(t.Context(), owner, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		must(t, err)
	}
}

// excludeOwner edits the advertisement so that the owner may not announce.
func excludeOwner(t *testing.T, s *stage, owner string) {
	s.selectNodes(t, `[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"NotIn","values":["`+owner+`"]}]}]`)
}

func includeOwner(t *testing.T, s *stage, _ string) { s.selectNodes(t, "null") }

func (s *stage) selectNodes(t *testing.T, selectors string) {
	t.Helper()
	_, err := s.env.Resource(testbed.L2Advertisements).Patch(t.Context(), s.Advertisement(), types.MergePatchType,
		[]byte(`{"spec":{"nodeSelectors":`+selectors+`}}`), metav1.PatchOptions{})
	must(t, err)
}

func rollOut(t *testing.T, s *stage, _ string) {
	for _, args := range [][]string{{"restart"}, {"status", "--timeout=2m"}} {
		_, err := s.env.Kubectl(t.Context(),
			append([]string{"-n", testbed.Namespace, "rollout", args[0], "daemonset/" + testbed.Speaker}, args[1:]...)...)
		must(t, err)
	}
}

func deleteSpeaker(t *testing.T, s *stage, owner string) { s.restartSpeaker(t, owner) }

// killSpeaker kills the owner's speaker, as the kernel's OOM killer does.
func killSpeaker(t *testing.T, s *stage, owner string) {
	wait, err := s.env.KillSpeaker(t.Context(), owner)
	must(t, err)
	must(t, wait())
}

// parted is the duration of a partition.
const parted = 20 * time.Second

// testL2Partition partitions two nodes, and three, each with a pod, with -matrix only. The client reaches all sides. If
// both sides read the API server, each address soon has one owner; if no side does, both sides serve. After the
// partition each address has one owner.
func testL2Partition(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			e.speakersOn(t, e.workers()[:n])
			on := onLAN
			on.pods = n
			s := newSpread(t, e, on)
			t.Run("API server", func(t *testing.T) { s.part(t, e.workers()[:n], true) })
			t.Run("no API server", func(t *testing.T) { s.part(t, e.workers()[:n], false) })
		})
	}
}

// part separates the faulty node from the others.
func (s *spread) part(t *testing.T, nodes []string, api bool) {
	t.Cleanup(func() { s.repair(t) })
	must(t, s.Calm(t.Context()))
	claims, err := s.Claims(t.Context(), s.host, 20*time.Millisecond, s.addresses...)
	must(t, err)
	streams := s.fetch(t)
	s.home(t, claims)
	sides := [][]string{{s.hit}, but(nodes, s.hit)}
	if !api {
		control := s.Cluster.Nodes()[0]
		sides = append(sides, []string{control})
	}
	hit := time.Now()
	must(t, s.Cluster.Partition(t.Context(), sides...))
	must(t, testbed.Holds(t.Context(), parted, func(context.Context) error { return nil }))
	repairedAt := time.Now()
	must(t, s.Cluster.Heal(t.Context()))
	must(t, testbed.Until(t.Context(), settled, "each address to have one owner", func(context.Context) error {
		_, err := s.owners(claims)
		return err
	}))
	united := time.Since(repairedAt)
	must(t, testbed.Holds(t.Context(), afterwards, func(context.Context) error { return nil }))
	frames, err := claims.Stop()
	must(t, err)
	t.Logf("matrix: %s: one owner for each address %d ms after healing", t.Name(), united.Milliseconds())
	for _, a := range s.addresses {
		fetches, err := streams[a].Stop()
		must(t, err)
		failed := 0
		for _, r := range fetches {
			if !r.OK {
				failed++
			}
		}
		contested, last := disputes(frames, a, hit, repairedAt)
		t.Logf("matrix: %s: %s: %d of %d fetches failed, two owners for %d ms, the last time %d ms after the beginning",
			t.Name(), a, failed, len(fetches), contested.Milliseconds(), last.Milliseconds())
		if api && contested > takeover {
			t.Errorf("%s had two owners for %s, want no more than %s", a, contested, takeover)
		}
	}
}

// disputes returns how long two nodes claimed an address during a partition, and the time from its beginning to the
// last double claim.
func disputes(claims []whohas.Claim, a netip.Addr, hit, repairedAt time.Time) (contested, last time.Duration) {
	for _, span := range whohas.Contested(whohas.Periods(claims, a)) {
		if span.From.Before(repairedAt) && span.To.After(hit) {
			contested += span.To.Sub(span.From)
			last = min(span.To.Sub(hit), repairedAt.Sub(hit))
		}
	}
	return contested, last
}

// partialFault is one row of the matrix of partial faults: a node has inbound or outbound loss
// while the others work.
type partialFault struct {
	name string
	// hit injects the fault, repair ends it. A nil repair heals the network.
	hit, repair func(t *testing.T, s *spread)
	// mustLeave reports that other nodes must serve the node's addresses.
	mustLeave bool
	// mustStay reports that no address may move.
	mustStay bool
	// mustUnite reports that every address must have a single owner soon after the fault begins.
	mustUnite bool
	// alwaysRuns reports that the row is part of every run.
	alwaysRuns bool
	// lasts is the time from hit to repair; 0 means the value of the flag.
	lasts time.Duration
}

func (tr partialFault) isSelected() bool {
	return tr.alwaysRuns || *matrix && (tr.lasts < longLoss || *long)
}

func (tr partialFault) duration() time.Duration {
	switch {
	case tr.lasts > 0:
		return tr.lasts
	case *matrix:
		return *lossTime
	}
	return shortLoss
}

// afterwards is how long the addresses are watched after that.
const afterwards = 2 * time.Second

// run executes one row.
func (s *spread) run(t *testing.T, tr partialFault) {
	t.Cleanup(func() { s.repair(t) })
	must(t, s.Calm(t.Context()))
	claims, err := s.Claims(t.Context(), s.host, 20*time.Millisecond, s.addresses...)
	must(t, err)
	streams := s.fetch(t)
	before := s.home(t, claims)

	hit := time.Now()
	tr.hit(t, s)
	must(t, testbed.Holds(t.Context(), tr.duration(), func(context.Context) error { return nil }))
	repairedAt := time.Now()
	if tr.repair != nil {
		tr.repair(t, s)
	} else {
		must(t, s.Cluster.Heal(t.Context()))
	}
	err = s.awaitHome(t, claims, before)
	if err != nil {
		t.Error(err)
	}
	back := time.Since(repairedAt)
	// The owners must not change again.
	must(t, testbed.Holds(t.Context(), afterwards, func(context.Context) error { return nil }))
	frames, err := claims.Stop()
	must(t, err)

	t.Logf("matrix: %s: of %s, one of %d speakers, for %s; as before %d ms later", tr.name, s.hit, s.speakers,
		tr.duration(), back.Milliseconds())
	for _, a := range s.addresses {
		fetches, err := streams[a].Stop()
		must(t, err)
		f := s.fate(a, before[a], fetches, frames, hit, repairedAt)
		t.Logf("matrix: %s: %s", tr.name, f)
		f.judge(t, tr)
	}
}
