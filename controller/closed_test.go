package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// closes makes a speaker report that it rejects connections of pods of the Service default/NAME; 0 pods are none.
func (f *fleet) closes(node, name string, pods int, why string) {
	status := &f.states[node].Status
	status.EgressClosed = nil
	if pods > 0 {
		status.EgressClosed = []v1beta1.ClosedEgress{{Service: "default/" + name, PodAddresses: int32(pods), Message: why}}
	}
}

// onNodes returns the Service default/web with a pod on each of these nodes.
func onNodes(nodes ...string) *egressSender {
	s := &egressSender{service: &lb.Service{Key: lb.Key{Namespace: "default", Name: "web"}}}
	for _, node := range nodes {
		s.pods = append(s.pods, &lb.Pod{Node: node})
	}
	return s
}

// closed returns what a Service reports about nodes that reject connections.
func (f *fleet) closed(s *egressSender) string {
	f.s.closed.apply(f.clock, []*egressSender{s})
	if s.isUnsettled {
		return "unsettled"
	}
	return s.closed
}

// TestClosed: a report counts once it has lasted, as long as its speaker lives, for a Service with pods on the node.
func TestClosed(t *testing.T) {
	const short, long = closedGrace / 3, 2 * closedGrace
	const w1 = "node w1 rejects the connections of 1 pod address: no slice"
	known := func(f *fleet) { f.pass(long); f.closes("w1", "web", 1, "no slice"); f.pass(long) }
	for _, tt := range []struct {
		name string
		do   func(*fleet)
		on   []string
		want string
	}{
		{"no report", func(f *fleet) { f.pass(long) }, []string{"w1"}, ""},
		{"a report that lasts", known, []string{"w1", "w2"}, w1},
		{"a report that does not last yet", func(f *fleet) {
			f.pass(long)
			f.closes("w1", "web", 1, "no slice")
			f.pass(short)
		}, []string{"w1"}, ""},
		{"a report that is over", func(f *fleet) { known(f); f.closes("w1", "", 0, ""); f.pass(long) }, []string{"w1"}, ""},
		{
			"a speaker that restarts",
			func(f *fleet) { known(f); f.closes("w1", "", 0, ""); f.pass(short) }, []string{"w1"}, w1,
		},
		{"a node that flaps", func(f *fleet) {
			f.pass(long)
			for range 20 {
				f.closes("w1", "web", 1, "no slice")
				f.pass(short)
				f.closes("w1", "", 0, "")
				f.pass(short)
			}
		}, []string{"w1"}, ""},
		{"a new leader", func(f *fleet) { known(f); f.s = speakerView{}; f.pass(short) }, []string{"w1"}, "unsettled"},
		{"a leader", func(f *fleet) { known(f); f.s = speakerView{}; f.pass(long) }, []string{"w1"}, w1},
		{"a dead node", func(f *fleet) { known(f); f.node("w1", false); f.pass(short) }, []string{"w1"}, ""},
		{"a speaker that was removed", func(f *fleet) { known(f); f.pass(staleTime, "w1") }, []string{"w1"}, ""},
		{"a node that left", func(f *fleet) { known(f); delete(f.states, "w1"); f.pass(short) }, []string{"w1"}, ""},
		{"a node without pods of the Service", known, []string{"w2"}, ""},
		{"another Service", func(f *fleet) { f.pass(long); f.closes("w1", "api", 1, "x"); f.pass(long) }, []string{"w1"}, ""},
		{"no Service", func(f *fleet) {
			f.pass(long)
			f.states["w1"].Status.EgressClosed = []v1beta1.ClosedEgress{{}, {Service: "/"}, {Service: "web"}, {Service: "a/b/c"}}
			f.pass(long)
		}, []string{"w1"}, ""},
		{"a report without a reason", func(f *fleet) { f.closes("w1", "web", 2, " \n."); f.pass(long) }, []string{"w1"},
			"node w1 rejects the connections of 2 pod addresses: no reason is given"},
		{"twice", func(f *fleet) {
			f.closes("w1", "web", 1, "no slice")
			f.states["w1"].Status.EgressClosed = append(f.states["w1"].Status.EgressClosed,
				f.states["w1"].Status.EgressClosed...)
			f.pass(long)
		}, []string{"w1"}, w1},
		{"many nodes", func(f *fleet) {
			for i := range 5 {
				f.closes(fmt.Sprintf("w%d", i+1), "web", i+1, "no slice.")
			}
			f.pass(long)
		}, []string{"w5", "w4", "w3", "w2", "w1", "w1"},
			w1 + "; node w2 rejects the connections of 2 pod addresses: no slice; " +
				"node w3 rejects the connections of 3 pod addresses: no slice; and so do 2 nodes more for connections of its pods"},
	} {
		f := newFleet("w1", "w2", "w3", "w4", "w5")
		tt.do(f)
		if got := f.closed(onNodes(tt.on...)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestClosedText: whatever a speaker writes, the text is short and on one line.
func TestClosedText(t *testing.T) {
	f := newFleet("w1", "w2", "w3", "w4")
	for node := range f.states {
		f.closes(node, "web", -1, strings.Repeat("ü\n\x1b[2J", 10_000))
	}
	f.pass(2 * closedGrace)
	got := f.closed(onNodes("w1", "w2", "w3", "w4"))
	if len(got) > 2000 || strings.ContainsAny(got, "\n\x1b") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// TestClosedPace: pods and nodes that come and go all the time change a text rarely.
func TestClosedPace(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(f *fleet, i int)
		max    int
	}{
		"pods": {func(f *fleet, i int) { f.closes("w1", "web", 1+i, "no slice") }, 7},
		"nodes": {func(f *fleet, i int) {
			f.closes("w1", "web", 1, "no slice")
			f.node("w1", i/6%2 == 0)
		}, 60},
	} {
		f := newFleet("w1")
		web := onNodes("w1")
		changes := 0
		last := ""
		f.pass(2 * closedGrace)
		for i := range 360 { // an hour
			tt.change(f, i)
			f.pass(10 * time.Second)
			if got := f.closed(web); got != last {
				changes, last = changes+1, got
			}
		}
		if changes < 2 || changes > tt.max {
			t.Errorf("%s: %d changes", name, changes)
		}
	}

	f, web := newFleet("w1", "w2"), onNodes("w1", "w2")
	f.closes("w1", "web", 1, "no slice")
	f.pass(2 * closedGrace)
	before := f.closed(web)
	f.closes("w2", "web", 1, "no slice")
	f.pass(2 * closedGrace)
	for i := range 10_000 {
		f.s.closed.texts[lb.Key{Name: fmt.Sprint(i)}] = closedText{}
	}
	if got := f.closed(web); got != before {
		t.Errorf("one of 10,001 texts changed from %q to %q after %v", before, got, 2*closedGrace)
	}
}

// TestClosedSync: the controller writes what a speaker reports into the condition of a Service with pods there, and of
// no other; a new leader leaves it until it knows better.
func TestClosedSync(t *testing.T) {
	other := sender("other", "192.0.2.8")
	other.Spec.Selector = map[string]string{"app": "other"}
	server := newServer(t, lan(), l2(), sender("web", "192.0.2.7"), other, loadBalancer("plain"),
		podOf("p1", "w1", "10.0.0.1"), podOf("p2", "w2", "10.0.0.2"))
	s := newTestSyncer(t, server)
	awaitPods(t, s)

	f := newFleet("w1", "w2")
	const reason = "node w2 has no IPv4 subnet in common with node w1 on the link where that announces 192.0.2.7"
	f.states["w2"].Status.EgressClosed = []v1beta1.ClosedEgress{
		{Service: "default/other", PodAddresses: 1, Message: "x"}, {Service: "default/plain", PodAddresses: 1, Message: "x"},
		{Service: "default/web", PodAddresses: 1, Message: reason},
	}
	step := func(when, want string) {
		t.Helper()
		s.speakers.closed = f.s.closed
		refreshed(t, s)
		if got := server.egress(t, "web"); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		f.s.closed = s.speakers.closed
	}
	const active = "True EgressActive pods on 2 nodes send from 192.0.2.7"
	closed := "False EgressUnavailable node w2 rejects the connections of 1 pod address: " + reason +
		"; pods on 2 nodes have ports of 192.0.2.7. " + lb.EgressUnavailable.Remedy()
	step("no report was read", active)
	f.pass(2 * closedGrace)
	step("w2 rejects connections", closed)
	f.s = speakerView{}
	f.pass(closedGrace / 3)
	step("a new leader", closed)
	f.node("w2", false)
	f.pass(2 * closedGrace)
	step("w2 is dead", active)

	for _, name := range []string{"other", "plain"} {
		if got := server.egress(t, name); strings.Contains(got, "rejects") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if c := server.service(t, "plain").Status.Conditions; len(c) == 0 || server.egress(t, "plain") != "" {
		t.Errorf("%v", c)
	}
}
