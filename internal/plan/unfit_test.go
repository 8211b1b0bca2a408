package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func refused(l lb.Link) lb.Link {
	l.Refused = true
	return l
}

// TestUnfit: the owner of v4 and the message if nodes cannot do their job; by the hash alone it is w1, then w2.
//
// Trap: an address stays with an owner that cannot serve it (MetalLB: a speaker without NET_RAW is a
// member like any other).
func TestUnfit(t *testing.T) {
	unfit := func(u lb.Unfit, nodes ...string) func(*lb.State) {
		return func(s *lb.State) {
			s.Unfit = map[string]lb.Unfit{}
			for _, n := range nodes {
				s.Unfit[n] = u
			}
		}
	}
	ranged := func(then func(*lb.State)) func(*lb.State) {
		return func(s *lb.State) {
			s.Services[0].Access = lb.Access{Restricted: true, Allow: prefixes("192.0.2.0/24")}
			then(s)
		}
	}
	lan := link("eth0", "192.0.2.0/24", "2001:db8::/64")
	links := func(w1, w2, w3 lb.Link) func(*lb.State) {
		return func(s *lb.State) { s.Links = map[string][]lb.Link{"w1": {w1}, "w2": {w2}, "w3": {w3}} }
	}
	for _, tt := range []struct {
		name    string
		change  func(*lb.State)
		owner   string
		reason  lb.Reason
		message string
		routed  string
	}{
		{"all are fit", ranged(unfit(0)), "w1", lb.Announced, "", "w1 w2 w3"},
		{"one boots", unfit(lb.Booting, "w1"), "w2", lb.Announced, "", "w2 w3"},
		{"one boots that alone has an endpoint for policy Local", func(s *lb.State) {
			unfit(lb.Booting, "w2")(s)
			s.Services[0].Local = true
		}, "", lb.NoEligibleNode, "KubeProxyNotReady: w2", ""},
		{"all boot", unfit(lb.Booting, "w1", "w2", "w3"), "", lb.NoEligibleNode, "KubeProxyNotReady: w1, w2, w3", ""},
		{"one that boots ranks behind all others", func(s *lb.State) { unfit(lb.Booting, "w1")(s); drain(s, "w2", "w3") }, "w2", lb.Announced, "", "w2 w3"},
		{"one cannot filter", ranged(unfit(lb.Unfiltered, "w1")), "w2", lb.Announced, "", "w2 w3"},
		{"one cannot filter, but there are no ranges", unfit(lb.Unfiltered, "w1"), "w1", lb.Announced, "", "w1 w2 w3"},
		{"filtering counts more than draining", ranged(func(s *lb.State) { unfit(lb.Unfiltered, "w1", "w3")(s); drain(s, "w2") }), "w2", lb.Announced, "", "w2"},
		{"and more than the subnet", ranged(func(s *lb.State) {
			unfit(lb.Unfiltered, "w1", "w3")(s)
			links(lan, link("eth0", "10.0.0.0/8"), lan)(s)
		}), "w2", lb.Announced, "no node that may announce has a link with its subnet", "w2"},
		{"no node can filter", ranged(unfit(lb.Unfiltered, "w1", "w2", "w3")), "", lb.FilterNotInForce,
			"no node that may announce can keep the filter of the source ranges in force (w1, w2, w3)", ""},
		{"no node that may announce can filter", ranged(func(s *lb.State) {
			unfit(lb.Unfiltered, "w1", "w2")(s)
			s.Services[0].NodeSelectors = []lb.Selector{{{Key: "zone", Operator: lb.In, Values: []string{"a"}}}}
		}), "", lb.FilterNotInForce, "(w1, w2)", ""},
		{"no node can filter, but there are no ranges", unfit(lb.Unfiltered, "w1", "w2", "w3"), "w1", lb.Announced, "", "w1 w2 w3"},
		{"one's sockets are refused", links(refused(lan), lan, lan), "w2", lb.Announced, "", "w1 w2 w3"},
		{"on one of its links", func(s *lb.State) {
			links(refused(lan), lan, lan)(s)
			s.Links["w1"] = append(s.Links["w1"], link("eth1", "192.0.2.0/24", "2001:db8::/64"))
		}, "w1", lb.Announced, "", "w1 w2 w3"},
		{"they count more than draining", func(s *lb.State) { links(refused(lan), lan, refused(lan))(s); drain(s, "w2") }, "w2", lb.Announced, "", "w1 w3"},
		{"all nodes' are refused", links(refused(lan), refused(lan), refused(lan)), "w1", lb.Announced, "no node that may announce has a link to do so", "w1 w2 w3"},
	} {
		s := testState()
		tt.change(&s)
		if got := owners(s, v4); got != tt.owner {
			t.Errorf("%s: owned by %q, want %q", tt.name, got, tt.owner)
		}
		if got := routed(s, v4); got != tt.routed {
			t.Errorf("%s: advertised by %q, want %q", tt.name, got, tt.routed)
		}
		writers := 0
		for name := range s.Nodes {
			p := ForNode(name, s)
			v := p.Verdicts[0]
			got := v.L2.Message
			for _, a := range v.L2.Announcers {
				got += a.Remark
			}
			if v.L2.Reason != tt.reason || !strings.Contains(got, tt.message) || tt.message == "" && got != "" {
				t.Errorf("%s: %s says %s: %s", tt.name, name, v.L2.Reason, got)
			}
			if v.L2.Writer {
				writers++
			}
			if boots := s.Unfit[name].Has(lb.Booting); boots && (len(p.Announcements) > 0 || len(p.Routes) > 0) {
				t.Errorf("%s: %s boots and takes %v, %v", tt.name, name, p.Announcements, p.Routes)
			} else if boots && tt.owner != "" && (v.L2.Here != lb.KubeProxyNotReady || v.BGP.Here != lb.KubeProxyNotReady) {
				t.Errorf("%s: %s gives as reasons %s, %s", tt.name, name, v.L2.Here, v.BGP.Here)
			}
			if s.Unfit[name].Has(lb.Unfiltered) && s.Services[0].Restricted && (v.L2.Here != lb.FilterNotInForce || v.BGP.Here != lb.FilterNotInForce) {
				t.Errorf("%s: %s gives as reasons %s, %s", tt.name, name, v.L2.Here, v.BGP.Here)
			}
		}
		if writers != 1 {
			t.Errorf("%s: %d writers", tt.name, writers)
		}
	}
}

// routed returns the nodes that advertise an address by their own plans.
func routed(s lb.State, a netip.Addr) string {
	var out []string
	for name := range s.Nodes {
		if slices.ContainsFunc(ForNode(name, s).Routes, func(r lb.Route) bool { return r.Prefix.Contains(a) }) {
			out = append(out, name)
		}
	}
	return strings.Join(slices.Sorted(slices.Values(out)), " ")
}

// TestUnfitYields: a node stops answering for an address that it withholds at once, since it would let every client in;
// it hands over all others.
func TestUnfitYields(t *testing.T) {
	s := testState()
	s.Services[0].Access = lb.Access{Restricted: true, Allow: prefixes("192.0.2.0/24")}
	s.Unfit = map[string]lb.Unfit{"w1": lb.Unfiltered}
	s.Here.Unfiltered = true
	if got := ForNode("w1", s).Yield; len(got) > 0 {
		t.Errorf("it answers on for %v", got)
	}
	s.Services[0].Access = lb.Access{}
	s.Unfit["w1"] = lb.Booting
	if got := ForNode("w1", s).Yield; len(got) != 2 {
		t.Errorf("it hands over %v", got)
	}
}

// TestUnfitAgreed: in any state all nodes agree on the owners, and on those that there would be without the nodes and the
// links that cannot do their job.
func TestUnfitAgreed(t *testing.T) {
	for seed := range uint64(300) {
		s := randomState(seed)
		want := map[netip.Addr]string{}
		first := true
		for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
			p := ForNode(name, s)
			if !first && !maps.Equal(want, p.Owners) {
				t.Fatalf("seed %d: %s sees %v, others %v", seed, name, p.Owners, want)
			}
			want, first = p.Owners, false
		}
		fit := s
		fit.Members, fit.Links, fit.Unfit = maps.Clone(s.Members), map[string][]lb.Link{}, nil
		for name, u := range s.Unfit {
			if u.Has(lb.Booting) {
				delete(fit.Members, name)
			}
		}
		for name, links := range s.Links {
			fit.Links[name] = slices.DeleteFunc(slices.Clone(links), func(l lb.Link) bool { return l.Refused })
		}
		open := ForNode("n0", fit).Owners
		for name, u := range s.Unfit {
			if u.Has(lb.Unfiltered) {
				delete(fit.Members, name)
			}
		}
		closed := ForNode("n0", fit).Owners
		ranged := map[netip.Addr]bool{}
		for _, sv := range s.Services {
			for _, a := range sv.Addresses {
				ranged[a] = ranged[a] || sv.HasRanges()
			}
		}
		got := map[netip.Addr]string{}
		for a, is := range ranged {
			owner := open[a]
			if is {
				owner = closed[a]
			}
			if owner != "" {
				got[a] = owner
			}
		}
		if diff := cmp.Diff(texts(got), texts(want)); diff != "" {
			t.Errorf("seed %d: without those that cannot -, with them +\n%s", seed, diff)
		}
	}
}

func texts(owners map[netip.Addr]string) map[string]string {
	out := map[string]string{}
	for a, who := range owners {
		out[fmt.Sprint(a)] = who
	}
	return out
}

// TestSessionless: of the nodes that advertise a Service the first one with a session writes the condition of BGP, or it
// would say that nobody advertises; it names those with a session. A node without one plans its routes all the same.
func TestSessionless(t *testing.T) {
	for without, named := range map[string]string{"": "w1, w2, w3", "w1": "w2, w3", "w2": "w1, w3", "w1 w2": "w3", "w1 w2 w3": "w1, w2, w3"} {
		s := testState()
		s.Unfit = map[string]lb.Unfit{}
		for _, name := range strings.Fields(without) {
			s.Unfit[name] = lb.Sessionless
		}
		var writers, ofLayer2 []string
		for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
			v := ForNode(name, s).Verdicts[0]
			if v.BGP.Writer {
				writers = append(writers, name)
			}
			if want := "advertised by " + named; v.BGP.Message != want {
				t.Errorf("without a session %q: %s says %q, want %q", without, name, v.BGP.Message, want)
			}
			if v.L2.Writer {
				ofLayer2 = append(ofLayer2, name)
			}
		}
		if diff := cmp.Diff([]string{named[:2]}, writers); diff != "" {
			t.Errorf("without a session %q: writers -want +got\n%s", without, diff)
		}
		if diff := cmp.Diff([]string{"w1"}, ofLayer2); diff != "" {
			t.Errorf("without a session %q: writers of layer 2 -want +got\n%s", without, diff)
		}
		if got := routed(s, v4); got != "w1 w2 w3" {
			t.Errorf("without a session %q: advertised by %q", without, got)
		}
	}
}
