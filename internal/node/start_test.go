package node

import (
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/rest"
)

// TestMembershipBeforeStart: until its keys are known the membership is there, and is empty. No part asks whether it
// has started, and nothing that this node sends is lost.
func TestMembershipBeforeStart(t *testing.T) {
	m := &Membership{}
	m.observe(nil, nil)
	m.confirm(detect.NodeSets{})
	m.Ask("w2", nil, false)
	m.sendStopping()
	if m.Ready() || m.Valid() || m.HearsSome() || m.view().Settled || m.address().IsValid() || m.KeysVersion() != "" {
		t.Error("it is no empty membership")
	}
	if m.Speakers() != nil || m.metadata() != nil || len(m.Alive()) > 0 {
		t.Errorf("it knows %v", m.Alive())
	}
	if _, err := m.Process(); err == nil {
		t.Error("it has a process")
	}
	if n := testutil.CollectAndCount(m); n > 0 {
		t.Errorf("it has %d metrics", n)
	}
	m.send(lb.Member{Stopping: true})
	if sent := m.sent.Load(); sent == nil || !sent.Stopping {
		t.Errorf("it has forgotten what it sends: %v", sent)
	}
}

// TestNewWhileStarting: an address that a Service got before the other speakers are known is new in whole plans, too.
func TestNewWhileStarting(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newTestLoop(oneLink(t, nstest.Self(t)))
		w.atCluster(t, &rest.Config{Host: "http://192.0.2.3"})
		web := &lb.Service{Key: lb.Key{Name: "web"}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.100")}}
		read := func(services ...*lb.Service) inputs {
			in := w.read(nil)
			in.state.Services = services
			return in
		}
		must(t, w.filterOnly(read()))
		must(t, w.filterOnly(read(web)))
		for i := range 2 {
			_, err := w.run(read(web), detect.NodeSets{}, nil)
			must(t, err)
			if got := w.Plan().Newcomers.ByService()[web.Key]; len(got) != 1 {
				t.Errorf("in plan %d of the whole node these are new: %v", i, got)
			}
		}
	})
}
