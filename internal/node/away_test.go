//go:build !race

package node

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// backLimit is how many minutes informers have to find an API server that is back.
const backLimit = 15

// Paths of lists.
const (
	servicesPath = "/api/v1/services"
	statesPath   = "/apis/holdfast.dev/v1beta1/speakerstates"
)

// fleet is the speakers of one API server, without membership and sockets: the test decides who is alive.
type fleet struct {
	t        *testing.T
	api      *apiServer
	mu       sync.Mutex
	alive    map[string]bool
	speakers map[string]*node
	// hangs is called in each run, and may take its time.
	hangs func(*Loop)
}

// node is one speaker.
type node struct {
	*Loop
	stop func()
}

func newFleet(t *testing.T, names ...string) *fleet {
	c := &fleet{t: t, api: newAPIServer(t), alive: map[string]bool{}, speakers: map[string]*node{}}
	for i, name := range names {
		c.alive[name] = true
		c.api.put("/api/v1/nodes", name, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		c.api.put("/api/v1/pods", "holdfast/"+name, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: name}, Spec: corev1.PodSpec{NodeName: name},
			Status: corev1.PodStatus{HostIP: fmt.Sprintf("198.51.100.%d", i+1)},
		})
		c.api.put(statesPath, name, &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	c.api.put("/apis/holdfast.dev/v1beta1/ipaddresspools", "p", &v1beta1.IPAddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/24"}},
	})
	c.api.put("/apis/holdfast.dev/v1beta1/l2advertisements", "all",
		&v1beta1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}})
	return c
}

// serve makes a Service with an address and an endpoint.
func (c *fleet) serve(address string, conditions ...metav1.Condition) {
	m := metav1.ObjectMeta{Namespace: "default", Name: "s" + strings.ReplaceAll(address, ".", "-"), UID: "1"}
	c.api.put(servicesPath, m.Namespace+"/"+m.Name, &corev1.Service{
		ObjectMeta: m,
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"},
			Ports: []corev1.ServicePort{{Port: 80}},
		},
		Status: corev1.ServiceStatus{
			Conditions:   conditions,
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: address}}},
		},
	})
	m.Labels = map[string]string{discoveryv1.LabelServiceName: m.Name}
	c.api.put("/apis/discovery.k8s.io/v1/endpointslices", m.Namespace+"/"+m.Name, &discoveryv1.EndpointSlice{
		ObjectMeta: m, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, NodeName: new("w1")}},
	})
}

func (c *fleet) view() detect.NodeSets {
	c.mu.Lock()
	defer c.mu.Unlock()
	return detect.NodeSets{
		View: detect.View{Settled: true}, Alive: maps.Clone(c.alive), HeldDown: map[string]bool{},
		SpeakerDown: map[string]bool{},
	}
}

// start runs the speaker of a node, as serve does.
func (c *fleet) start(name string) {
	w := newTestLoop(noLinks)
	w.node, w.options, w.sinks.Filter = name, config.Options{Default: true}, newTestGuard(true)
	prober := w.atCluster(c.t, c.api.config())
	w.loop = daemon.NewLoop(daemon.LoopConfig{
		Name: "plan", Log: w.log, Sync: func(context.Context) (time.Duration, error) {
			return c.plan(w)
		},
	})
	w.stops.hang = newHang(w.loop, w.offer, w.countOffered)
	w.stops.hang.schedDelay = func() time.Duration { return 0 } // the machine that runs the test may be busy
	stop := background(c.t, w.sources.Cluster.Run, w.sinks.Layer2.Run, w.sources.Liveness.Run, prober.Run, w.Run,
		w.sinks.Report.Run)
	c.speakers[name] = &node{Loop: w, stop: func() { go stop() }} // the others do not wait until it has ended
}

// plan is one run of a speaker with the fleet's view.
func (c *fleet) plan(w *Loop) (again time.Duration, err error) {
	if !w.sources.Cluster.Synced() {
		return 0, nil
	}
	in, view := w.read(nil), c.view()
	if c.hangs != nil {
		c.hangs(w)
	}
	w.sources.Liveness.Set(liveness.Known{View: view, Speakers: in.state.Speakers, Services: in.state.Services})
	return w.run(in, view, c.stopping())
}

// stopping is the metadata of the speakers whose plan loops hang.
func (c *fleet) stopping() map[string]lb.Member {
	out := map[string]lb.Member{}
	for name, n := range c.speakers {
		if n.stops.hung.Load() {
			out[name] = lb.Member{Stopping: true, Partial: true}
		}
	}
	return out
}

// die ends the speakers of nodes, and removes these from the fleet's view.
func (c *fleet) die(names ...string) {
	for _, name := range names {
		c.speakers[name].stop()
		delete(c.speakers, name)
		c.mu.Lock()
		delete(c.alive, name)
		c.mu.Unlock()
	}
	for _, n := range c.speakers {
		n.loop.Kick()
	}
}

// announced returns who announces each address.
func (c *fleet) announced() map[string]string {
	out := map[string]string{}
	for name, n := range c.speakers {
		for _, a := range n.sinks.Layer2.State().Addresses {
			out[a.Address.String()] = strings.TrimSpace(out[a.Address.String()] + " " + name)
		}
	}
	return out
}

// TestAPIServerAway takes the API server away for ten minutes, in which half of the nodes die. Their addresses are
// taken over at once, all other addresses stay, no speaker yields to dead nodes, and conditions and SpeakerStates are
// written once the API server is back. Every plan is the same as a plan from scratch.
//
// It does not run under the race detector: with so many goroutines in one bubble Go 1.26 itself crashes, or a
// goroutine never wakes.
//
// Trap: an address is lost with a Lease that no node can renew (kube-vip #1377).
func TestAPIServerAway(t *testing.T) {
	for _, away := range []string{refuses, hangs, fails} {
		t.Run(away, func(t *testing.T) { inBubble(t, func(t *testing.T) { testAway(t, away) }) })
	}
}

// inBubble runs the test of a fleet, in a network namespace, where no kernel answers for the addresses of nodes.
func inBubble(t *testing.T, test func(t *testing.T)) {
	k8s.LogTo(slog.New(slog.DiscardHandler))
	// One error handler sleeps until some time after the last error of the process. That time is of the real clock, not
	// of the bubble's, so that it would sleep for decades.
	utilruntime.ErrorHandlers = nil
	nstest.Run(t, func(t *testing.T) { synctest.Test(t, test) })
}

func testAway(t *testing.T, away string) {
	c := newFleet(t, "w1", "w2", "w3", "w4")
	var addresses []string
	for a := netip.MustParseAddr("192.0.2.1"); len(addresses) < 10; a = a.Next() {
		addresses = append(addresses, a.String())
		c.serve(a.String())
	}
	for name := range c.view().Alive {
		c.start(name)
	}
	all := func(when string, addresses ...string) map[string]string {
		t.Helper()
		got := c.announced()
		if have := slices.Sorted(maps.Keys(got)); !slices.Equal(have, slices.Sorted(slices.Values(addresses))) {
			t.Errorf("%s: announced are %v, want %v", when, have, addresses)
		}
		for a, who := range got {
			if strings.Contains(who, " ") {
				t.Errorf("%s: %s is announced by %s", when, a, who)
			}
		}
		return got
	}
	time.Sleep(10 * time.Second)
	before := all("at first", addresses...)
	c.api.set(away)
	time.Sleep(time.Minute)
	if got := all("away for a minute", addresses...); !maps.Equal(got, before) {
		t.Errorf("it moves %v to %v", before, got)
	}
	c.die("w2", "w4")
	time.Sleep(time.Second)
	moved := ""
	after := all("w2 and w4 have died", addresses...)
	for a, who := range after {
		if before[a] == "w2" || before[a] == "w4" {
			moved = max(moved, a) // not the address that is deleted later
		} else if before[a] != who {
			t.Errorf("%s moved from %s to %s though that lives", a, before[a], who)
		}
	}
	if moved == "" {
		t.Fatal("the dead had nothing, so nothing is tested")
	}
	for range 10 {
		time.Sleep(time.Minute)
		if got := all("minutes later", addresses...); !maps.Equal(got, after) {
			t.Errorf("it moves %v to %v", after, got)
		}
		for name, n := range c.speakers {
			if yields := n.sources.Liveness.State().Partition.YieldsTo; yields != nil {
				t.Errorf("%s yields to %v", name, yields)
			}
		}
	}
	c.serve("192.0.2.100")
	c.api.put(servicesPath, "default/s192-0-2-1", nil)
	c.api.set(here)
	// Informers rest for up to a minute after each failure.
	for range backLimit {
		if _, back := c.announced()["192.0.2.100"]; back {
			break
		}
		time.Sleep(time.Minute)
	}
	time.Sleep(time.Minute) // for the conditions
	all("back", append(addresses[1:], "192.0.2.100")...)
	for name, n := range c.speakers {
		if yields := n.sources.Liveness.State().Partition.YieldsTo; yields != nil {
			t.Errorf("back: %s yields to %v", name, yields)
		}
	}
	for name := range c.speakers {
		var s v1beta1.SpeakerState
		if c.api.get(statesPath, name, &s); len(s.Status.Unreachable) != 2 {
			t.Errorf("%s calls unreachable %v", name, s.Status.Unreachable)
		}
	}
	var s corev1.Service
	c.api.get(servicesPath, "default/s"+strings.ReplaceAll(moved, ".", "-"), &s)
	condition := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionAnnouncedL2)
	if condition == nil || !strings.Contains(condition.Message, after[moved]) {
		t.Errorf("of %s, which moved to %s, the condition says %+v", moved, after[moved], condition)
	}
}
