package report

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// announcingPlan is of a node that announces the Service web by both protocols, and has a session and links that do so.
func announcingPlan() (plan.Plan, []lb.AddressState, []lb.Session) {
	here := plan.Outcome{Here: lb.Announced, Peers: []string{"r1"}}
	elsewhere := plan.Outcome{Here: lb.NotOwner}
	var all []lb.Frontend
	var p plan.Plan
	p.Verdicts = p.Verdicts.Put(lb.Key{Namespace: "ns", Name: "other"}, &plan.Verdict{L2: elsewhere, BGP: elsewhere})
	p.Verdicts = p.Verdicts.Put(lb.Key{Namespace: "ns", Name: "web"}, &plan.Verdict{L2: here, BGP: here})
	for _, f := range []struct{ service, address string }{
		{"web", "192.0.2.1"},
		{"other", "192.0.2.2"},
		{"web", "2001:db8::1"},
	} {
		p.Advertised = p.Advertised.Put(netip.MustParseAddr(f.address), time.Time{})
		for _, port := range []uint16{80, 443} {
			all = append(all, lb.Frontend{
				Address: netip.MustParseAddr(f.address), Port: port, Service: lb.Key{Namespace: "ns", Name: f.service},
			})
		}
	}
	p.Filter.Frontends = frontends(all...)
	states := []lb.AddressState{
		{Address: netip.MustParseAddr("192.0.2.1"), Answered: true},
		{Address: netip.MustParseAddr("192.0.2.2"), Answered: true},
		{Address: netip.MustParseAddr("2001:db8::1"), Answered: true},
	}
	return p, states, []lb.Session{{Peer: "r1", State: lb.Established, Families: []lb.Family{lb.IPv4, lb.IPv6}}}
}

// TestAnnouncedHere: what the metric says is what the links and the sessions do, and not what the plan wants.
func TestAnnouncedHere(t *testing.T) {
	web := lb.Key{Namespace: "ns", Name: "web"}
	const l4, l6, b4, b6 = "IPv4 layer2", "IPv6 layer2", "IPv4 bgp", "IPv6 bgp"
	for name, tt := range map[string]struct {
		change func(*plan.Plan, []lb.AddressState, []lb.Session)
		want   []string
	}{
		"all is well": {func(*plan.Plan, []lb.AddressState, []lb.Session) {}, []string{l4, l6, b4, b6}},
		"another machine has one": {
			func(_ *plan.Plan, a []lb.AddressState, _ []lb.Session) { a[2].Answered = false }, []string{l4, b4, b6},
		},
		"another node's address": {
			func(p *plan.Plan, _ []lb.AddressState, _ []lb.Session) { p.Verdicts.Of(web).L2.Here = lb.NotOwner },
			[]string{b4, b6},
		},
		"no session": {
			func(_ *plan.Plan, _ []lb.AddressState, s []lb.Session) { s[0].State = "active" }, []string{l4, l6},
		},
		"a session of one family": {
			func(_ *plan.Plan, _ []lb.AddressState, s []lb.Session) { s[0].Families = []lb.Family{lb.IPv6} },
			[]string{l4, l6, b6},
		},
		"a session with another peer": {
			func(_ *plan.Plan, _ []lb.AddressState, s []lb.Session) { s[0].Peer = "r2" }, []string{l4, l6},
		},
		"a route is withheld": {func(p *plan.Plan, _ []lb.AddressState, _ []lb.Session) {
			p.Advertised = p.Advertised.Without(netip.MustParseAddr("192.0.2.1"))
		}, []string{l4, l6, b6}},
		"no BGP": {
			func(p *plan.Plan, _ []lb.AddressState, _ []lb.Session) { p.Verdicts.Of(web).BGP.Here = lb.NoPeer },
			[]string{
				l4, l6,
			},
		},
	} {
		p, states, sessions := announcingPlan()
		tt.change(&p, states, sessions)
		want := map[[4]string]bool{}
		for _, w := range tt.want {
			family, protocol, _ := strings.Cut(w, " ")
			want[[4]string{"ns", "web", family, protocol}] = true
		}
		if diff := cmp.Diff(want, announcedHere(p, states, sessions)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAnnouncedHereIsBounded: a user who makes many Services costs Prometheus no more than the bound.
func TestAnnouncedHereIsBounded(t *testing.T) {
	var p plan.Plan
	var states []lb.AddressState
	var all []lb.Frontend
	a := netip.MustParseAddr("192.0.2.0")
	for i := range daemon.MaxNamed + 10 {
		k := lb.Key{Namespace: "ns", Name: fmt.Sprintf("s%05d", i)}
		a = a.Next()
		p.Verdicts = p.Verdicts.Put(k, &plan.Verdict{L2: plan.Outcome{Here: lb.Announced}})
		all = append(all, lb.Frontend{Address: a, Service: k})
		states = append(states, lb.AddressState{Address: a, Answered: true})
	}
	p.Filter.Frontends = frontends(all...)
	if n := len(announcedHere(p, states, nil)); n != daemon.MaxNamed {
		t.Errorf("%d series", n)
	}
}

// frontends returns frontends by address.
func frontends(list ...lb.Frontend) lb.Map[netip.Addr, *[]lb.Frontend] {
	out := map[netip.Addr]*[]lb.Frontend{}
	for _, f := range list {
		if out[f.Address] == nil {
			out[f.Address] = new([]lb.Frontend)
		}
		*out[f.Address] = append(*out[f.Address], f)
	}
	return lb.MapOf(out)
}
