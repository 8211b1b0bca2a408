//go:build e2e && upgrade

package e2e

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

var upgradeFrom = flag.String("from", "", "`directory` with the artifacts to upgrade from, as make release makes them")

// TestUpgrade upgrades from earlier artifacts to those in dist, as docs/install.md says, and rolls back, while clients
// send 200 requests a second to each address. None may fail.
func TestUpgrade(t *testing.T) {
	if *upgradeFrom == "" {
		t.Fatal("-from is not given: use make test-upgrade")
	}
	b, err := testbed.New(openLab(t, lab.ProxyNFTables))
	must(t, err)
	next, err := b.Version()
	must(t, err)
	b.UseArtifacts(*upgradeFrom)
	former, err := b.Version()
	must(t, err)
	if former == next {
		t.Fatalf("both are version %s", next)
	}
	e := install(t, b, true)
	e.runs(t, former)

	l2 := e.service(t, e.app, "upgrade-l2")
	// One next hop only, so that no other node's route hides a gap.
	single := e.app
	single.Name, single.Replicas = "single", 1
	bgp := e.service(t, single, "upgrade-bgp", routed, local)
	must(t, e.Deploy(t.Context(), single))
	e.served(t, testbed.Client, l2)
	e.served(t, testbed.Far, bgp)
	e.hops(t, bgp, 1)
	b.UseArtifacts(b.Path("dist"))
	must(t, e.LoadImage(t.Context()))

	e.floating(t, "outlives", `{ipFamilies: [IPv6]}`)
	before := e.kept(t)
	streams := append(e.watch(t, testbed.Client, l2), e.watch(t, testbed.Far, bgp)...)
	start := time.Now()
	must(t, e.Install(t.Context()))
	must(t, e.WaitReady(t.Context()))
	e.runs(t, next)
	t.Logf("upgraded from %s to %s within %s", former, next, since(start))
	recovered(t, streams)
	if failed := finish(t, streams, "upgrade"); failed > 0 {
		t.Errorf("%d requests failed", failed)
	}
	e.keeps(t, before)

	streams = append(e.watch(t, testbed.Client, l2), e.watch(t, testbed.Far, bgp)...)
	_, err = e.Helm(t.Context(), "rollback", testbed.Release, "--namespace", testbed.Namespace, "--wait")
	must(t, err)
	must(t, e.WaitReady(t.Context()))
	e.runs(t, former)
	recovered(t, streams)
	if failed := finish(t, streams, "rollback"); failed > 0 {
		t.Errorf("%d requests failed", failed)
	}
	e.keeps(t, before)
	must(t, e.Install(t.Context()))
	must(t, e.WaitReady(t.Context()))
	e.hops(t, bgp, 1)
	e.keeps(t, before)

	s := newSpread(t, e, onLAN)
	b.UseArtifacts(*upgradeFrom)
	t.Run("half way back", func(t *testing.T) { s.halfWay(t) })
	b.UseArtifacts(b.Path("dist"))
	t.Run("half way forth", func(t *testing.T) { s.halfWay(t) })
}

// halfWay replaces the speakers of the faulty worker and of some others. While the others are of the former version,
// the worker's power is cut: others take over, and no healthy node loses an address. Then it replaces the rest.
func (s *spread) halfWay(t *testing.T) {
	next, err := s.Version()
	must(t, err)
	must(t, s.LoadImage(t.Context()))
	// No speaker counts as available for that long, so that no second one is replaced by itself.
	must(t, s.Install(t.Context(), "--set", "speaker.minReadySeconds=3600", "--wait=false"))
	must(t, testbed.Until(t.Context(), time.Minute, "the first speaker to be replaced", func(ctx context.Context) error {
		for _, node := range s.Cluster.Nodes() {
			if metrics, err := s.Metrics(ctx, node); err == nil && isVersion(metrics, next) {
				return nil
			}
		}
		return fmt.Errorf("no speaker is version %s", next)
	}))
	must(t, s.WaitReady(t.Context()))
	for _, node := range []string{s.workers()[0], s.hit} {
		must(t, s.ReplaceSpeaker(t.Context(), node))
	}
	s.run(t, partialFault{name: "power-off", hit: plugPulled, repair: plugBack, mustLeave: true})
	must(t, s.Install(t.Context()))
	must(t, s.WaitReady(t.Context()))
	s.runs(t, next)
}

// runs waits until every pod of Holdfast says that it is a version.
func (e *env) runs(t *testing.T, version string) {
	t.Helper()
	check := func(who string, metrics map[string]float64) error {
		if !isVersion(metrics, version) {
			return fmt.Errorf("%s is another version", who)
		}
		return nil
	}
	must(t, testbed.Until(t.Context(), time.Minute, "version "+version+" on all nodes", func(ctx context.Context) error {
		for _, node := range e.Cluster.Nodes() {
			metrics, err := e.Metrics(ctx, node)
			if err != nil {
				return err
			}
			if err := check("the speaker of "+node, metrics); err != nil {
				return err
			}
		}
		pods, err := e.Pods(ctx, testbed.Controller)
		if err != nil {
			return err
		}
		for i := range pods {
			metrics, err := e.ControllerMetrics(ctx, pods[i].Name)
			if err != nil {
				return err
			}
			if err := check(pods[i].Name, metrics); err != nil {
				return err
			}
		}
		return nil
	}))
}

func isVersion(metrics map[string]float64, version string) bool {
	for name := range metrics {
		if strings.HasPrefix(name, "holdfast_build_info{") && strings.Contains(name, fmt.Sprintf(",version=%q", version)) {
			return true
		}
	}
	return false
}
