//go:build !race

package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/report"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMarkRemoved: a speaker that has withdrawn everything announces nothing when the uninstall mark is removed, but
// ends, so that a new process can announce.
func TestMarkRemoved(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const list, key, soon = "/apis/apps/v1/daemonsets", "holdfast/speaker", 30 * time.Second
		api := newAPIServer(t)
		mark := func(value string) {
			api.put(list, key, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
				Namespace: "holdfast", Name: "speaker", Annotations: map[string]string{k8s.UninstallMark: value},
			}})
		}
		mark("true")
		log := slog.New(slog.DiscardHandler)
		clients, err := k8s.ClientsFor(api.config(), "test")
		if err != nil {
			t.Fatal(err)
		}
		noLinks := func() []lb.Interface { return nil }
		cluster, err := k8s.New(clients, k8s.Config{Log: log, Component: "test", Namespace: "holdfast", DaemonSet: "speaker", Speaker: true, Kick: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		l2 := layer2.New(layer2.Config{Log: log, Links: noLinks})
		peers := bgp.New(bgp.Config{Log: log, Command: testEngine})
		w := &syncer{
			node: "w1", log: log, filter: newTestGuard(false), ended: make(chan error, 1),
			cluster: cluster, links: link.New(log, func() {}), layer2: l2, bgp: peers, paths: newPaths(log, peers, noLinks, nil, func() {}),
			relays:    newRelays(log, settings{relay: true}, noLinks, func() {}),
			liveness:  liveness.New(liveness.Config{Log: log, SilenceChanged: func() {}}),
			conntrack: kubeproxy.NewSweeper(log),
			headstart: kubeproxy.NewHeadStart(log),
			report:    report.New(report.Config{Log: log, NodeName: "w1", Cluster: cluster, Layer2: l2, Sessions: peers.Sessions, Foreign: func() []lb.Neighbour { return nil }}),
		}
		ctx, stop := context.WithCancel(t.Context())
		var group errgroup.Group
		group.Go(func() error { return w.cluster.Run(ctx) })
		group.Go(func() error { return w.links.Run(ctx) })
		defer func() {
			stop()
			if err := group.Wait(); err != nil {
				t.Error(err)
			}
		}()
		nstest.Until(t, soon, "all is known", func() bool { return w.cluster.Synced() && w.links.Synced() })
		sync := func() {
			t.Helper()
			if _, err := w.sync(ctx); err != nil {
				t.Fatal(err)
			}
		}
		sync()
		if !w.withdrawn.Load() || len(w.ended) > 0 {
			t.Fatalf("marked: withdrawn %t, ended %d times", w.withdrawn.Load(), len(w.ended))
		}
		mark("false")
		nstest.Until(t, soon, "the mark is off", func() bool { return !w.cluster.Uninstalling() })
		sync()
		select {
		case err := <-w.ended:
			if !errors.Is(err, errMarkRemoved) {
				t.Errorf("the mark is off: ended with %v", err)
			}
		default:
			t.Error("the mark is off, and it goes on")
		}
		if ok, _ := w.filter.table.Enforced(); ok {
			t.Error("there is a filter again")
		}
	})
}
