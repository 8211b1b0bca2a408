//go:build !race

package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
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
		w := newTestSyncer(noLinks)
		w.links = link.New(w.log, func() {})
		w.loop = daemon.NewLoop(daemon.LoopConfig{Log: w.log})
		w.atCluster(t, api.config())
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
