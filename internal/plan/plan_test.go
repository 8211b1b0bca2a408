package plan

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	toW2 = "w2 at 192.0.2.2 eth0, w2 at fe80::2 eth0"
	toW3 = "w3 at 192.0.2.3 eth0, w3 at fe80::3 eth0"
	// What w1 does if it is cut off.
	all    = "w1 announces 2, yields 0, routes 2; here "
	routes = "w1 announces 0, yields 0, routes 2; here "
	none   = "w1 announces 0, yields 0, routes 0; here "
	// What w1 does if its kube-proxy does not serve an endpoint yet.
	takes = "w1 announces 2, yields 0, routes 2; owner w1; here Announced Announced"
	waits = "w1 announces 0, yields 2, routes 0; owner w2; here KubeProxyNotReady KubeProxyNotReady; relays"
	// Routes of the Service, by default.
	webRoutes = "routes 192.0.2.10/32 [r1v4], 2001:db8::10/128 [r1v6]"
)

func zones(s *lb.State, zone string, weight int) {
	s.L2Advertisements[0].Preferred = append(s.L2Advertisements[0].Preferred,
		lb.Preference{Weight: weight, Selector: labelled("zone", zone)[0]})
}

// tables are plans of small States: each row is base after some orders. See world.
var tables = []struct {
	// about is what the rows have in common, first the orders before theirs.
	about, first string
	rows         []row
}{
	{"verdicts", "", []row{
		{
			"everything selected",
			"", webRoutes + "; own w1, w1; l2 Announced w1; bgp Announced w1 w2 w3; here Announced Announced", nil,
		},
		{
			"the owner dies",
			"dead w1", "own w2, w2; route w2 w3; l2 Announced w2; bgp Announced w2 w3; here NotMember NotMember", nil,
		},
		{"no serving endpoint", "idle",
			"own -, -; route -; l2 NoServingEndpoint -; bgp NoServingEndpoint -; " +
				"here NoServingEndpoint NoServingEndpoint; says no endpoint", nil},
		{"policy Local", "local w3", "own w3, w3; route w3; here NoLocalEndpoint NoLocalEndpoint", nil},
		{
			"excluded and without network",
			"nonet w1; exclude w2", "own w3, w3; route w3; here NetworkUnavailable NetworkUnavailable", nil,
		},
		{
			"no node may announce",
			"l2nodes none; nobgp", "l2 NoEligibleNode -; bgp NoAdvertisement -; here NoEligibleNode NoAdvertisement",
			nil,
		},
		{"no address", "noaddress", "l2 NoAddress -; bgp NoAddress -; here NoAddress NoAddress", nil},
		{
			"links of several advertisements",
			"", "announces 192.0.2.10 [eth0 eth1] 2001:db8::10 [eth0 eth1]", func(s *lb.State) {
				s.L2Advertisements = []lb.L2Advertisement{
					{Name: "a", Links: []string{"eth1"}},
					{Name: "b", Links: []string{"eth0", "eth1"}},
				}
			},
		},
		{"cut from its pool it stays announced", "", "own w1, w1", func(s *lb.State) {
			s.L2Advertisements[0].Pools, s.Pools[0].Ranges = []string{"lan"}, s.Pools[0].Ranges[1:]
			s.Services[0].Record = lb.Origins{{Address: v4, Pool: "lan"}}
		}},
	}},
	{"routes", "nol2", []row{
		{"one family has no peer", "", "routes 192.0.2.10/32 [r1v4]; bgp NoPeer w1 w2 w3; here NoAdvertisement Announced; " +
			"bgpsays no BGPPeer of family IPv6 selects a node that may announce 2001:db8::10",
			func(s *lb.State) { s.Peers = s.Peers[:1] }},
		{"no peer on this node", "nopeer w1", "routes ; bgp Announced w2 w3; here NoAdvertisement NoPeer", nil},
		{"a peer that is this node itself", "", "routes 2001:db8::10/128 [r1v6]; bgp Announced w1 w2 w3; route w2 w3",
			func(s *lb.State) { s.Peers[0].Unusable = map[string]lb.Reason{"w1": lb.PeerIsSelf} }},
		{"aggregates, communities and peers", "",
			"routes 192.0.2.0/24 [r1v4 r2v4] [65000:1 65000:2], 192.0.2.10/32 [r2v4] localpref 200 prepend 0 med none, " +
				"2001:db8::/64 [r1v6] [65000:1 65000:2]", func(s *lb.State) {
				r := s.Peers[0]
				r.Name = "r2v4"
				s.Peers = append(s.Peers, r)
				s.BGPAdvertisements = []lb.BGPAdvertisement{
					{AggregationLength: 24, AggregationLengthV6: 64, Communities: []lb.Community{{A: 65000, B: 2}, {A: 65000, B: 1}}},
					{AggregationLength: 32, AggregationLengthV6: 128, Peers: []string{"r2v4"}, LocalPref: 200},
				}
			}},
		{
			"one session for both families",
			"", "routes 192.0.2.10/32 [r1v4 r1v6], 2001:db8::10/128 [r1v6]",
			func(s *lb.State) { s.Peers[1].DualStack = true },
		},
		{
			"two local preferences for one route: the older one's",
			"v4only",
			"routes 192.0.2.10/32 [r1v4] localpref 40 prepend 2 med 0; " +
				"bgp ConflictingAdvertisements w1 w2 w3; here NoAdvertisement Announced", func(s *lb.State) {
				s.BGPAdvertisements = append(s.BGPAdvertisements, s.BGPAdvertisements[0])
				s.BGPAdvertisements[0].LocalPref = 40
				s.BGPAdvertisements[0].MED = lb.MED{Sent: true}
				s.BGPAdvertisements[0].Prepend = 2
				s.BGPAdvertisements[1].LocalPref = 50
			},
		},
		{
			"the same, whichever Service comes first",
			"aggregate",
			"routes 192.0.2.0/28 [r1v4] localpref 10 prepend 0 med none, " +
				"2001:db8::10/124 [r1v6] localpref 10 prepend 0 med none", func(s *lb.State) { aggregates(s) },
		},
		{
			"an advertisement for no Service that serves does not count",
			"aggregate",
			"routes 192.0.2.0/28 [r1v4] localpref 20 prepend 0 med none, " +
				"2001:db8::10/124 [r1v6] localpref 20 prepend 0 med none",
			func(s *lb.State) { aggregates(s); s.Services[1].Backends = lb.Backend{} },
		},
		{"an aggregation length that no address has", "", "routes 192.0.2.10/32 [r1v4], 2001:db8::10/128 [r1v6]",
			func(s *lb.State) {
				s.BGPAdvertisements[0].AggregationLength, s.BGPAdvertisements[0].AggregationLengthV6 = 33, -1
			}},
		// Of the nodes that advertise the first one with a session writes, or it would report that no node advertises.
		{"all have sessions", "", "bgpsays advertised by w1, w2, w3; writers w2, w1", nil},
		{"w1 has none", "sessionless w1", "bgpsays advertised by w2, w3; writers w2, w2; route w1 w2 w3", nil},
		{"two have none", "sessionless w1 w2", "bgpsays advertised by w3; writers w2, w3; route w1 w2 w3", nil},
		{"no node has one", "sessionless w1 w2 w3", "bgpsays advertised by w1, w2, w3; writers w2, w1; route w1 w2 w3", nil},
	}},
	// Traps: the owner does not have the interface, or not the subnet, so that no node announces or no client asks
	// there; a node that returns takes its addresses back at once (MetalLB); policy Local works only with a health
	// monitor that a user configures (OCCM #2866).
	{"rank", "", []row{
		{"no links known", "unknown w1 w2 w3", "own w1, w1", nil},
		{"draining ranks last", "drain w1", "own w2, w2", nil},
		{"all nodes are draining", "drain w1 w2 w3", "own w1, w1", nil},
		{"a speaker that stops ranks last", "stop w1", "own w2, w2", nil},
		{
			"without network",
			"nonet w1",
			"own w2, w2; route w2 w3; here NetworkUnavailable NetworkUnavailable; w1 announces 0, yields 2, routes 0",
			nil,
		},
		{"without an answer of a pod", "podless w1",
			"own w2, w2; route w2 w3; here NetworkUnavailable NetworkUnavailable; w1 announces 0, yields 2, routes 0; " +
				"bgpsays advertised by w2, w3 (not w1: NetworkUnavailable)", nil},
		{
			"all nodes are without an answer of a pod",
			"podless w1 w2 w3", "own w1, w1; route w1 w2 w3; here Announced Announced", nil,
		},
		{
			"without an answer of a pod, and alone with an endpoint for policy Local",
			"podless w2; local w2", "own w2, w2; route w2", nil,
		},
		{"all nodes are without network", "nonet w1 w2 w3", "own w1, w1; route w1 w2 w3; here Announced Announced", nil},
		{"without network, and alone with an endpoint for policy Local", "nonet w2; local w2", "own w2, w2; route w2", nil},
		{"stopping ranks behind draining", "drain w2 w3; stop w1", "own w2, w2", nil},
		{"a node that is held down takes nothing back", "held w1", "own w2, w2", nil},
		{"held down, but no other node can", "held w1; dead w2 w3", "own w1, w1", nil},
		{"held down ranks before draining", "held w1; drain w2 w3", "own w1, w1", nil},
		{"the node with the subnet", "links w1 eth0=10.0.0.0/8", "own w2, w2", nil},
		{"the subnet counts more than draining", "drain w2; links w1 eth0=10.0.0.0/8; links w3", "own w2, w2", nil},
		{"a node without metadata counts as one with the subnet", "unknown w1", "own w1, w1", nil},
		{"no node has the subnet", "links w1 eth0=10.0.0.0/8; links w2 eth0; links w3",
			"own w1, w1; says NoSubnet: no node that may announce has a link with its subnet", nil},
		{"no node has the interface", "l2links eth9", "own w1, w1; says no node that may announce has a link to do so", nil},
		{"the node with the interface", "l2links eth1; links w3 eth0=lan eth1=10.0.0.0/8",
			"own w3, w3; says no node that may announce has a link with its subnet", nil},
		{"the subnet on a link that may not announce", "links w1 eth0=10.0.0.0/8 veth1=lan", "own w2, w2", nil},
		{"a prefix of full length is no subnet", "links w1 eth0=192.0.2.10/32,2001:db8::10/128", "own w2, w2", nil},
		{"silence", "links w1 ~eth0=lan; drain w2", "own w3, w3", nil},
		{"all are silent", "links w1 ~eth0=lan; links w2 ~eth0=lan; links w3 ~eth0=lan",
			"own w1, w1; says every node that may announce hears no other machine on its link, or the link has " +
				"just returned", nil},
		{"all links to the subnet are silent, as when their switch has restarted; other nodes have none",
			"links w1 eth0=10.0.0.0/8; links w2 eth0=10.0.0.0/8 ~eth1=lan; links w3 eth0=10.0.0.0/8 ~eth1=lan",
			"own w2, w2; says every node that may announce hears no other machine on its link, or the link has " +
				"just returned", nil},
		{
			"one of them works",
			"links w1 eth0=10.0.0.0/8; links w2 eth0=10.0.0.0/8 ~eth1=lan; links w3 eth0=10.0.0.0/8 eth1=lan",
			"own w3, w3", nil,
		},
		{"a silent link without the subnet", "links w1 ~eth0; links w2 eth0=10.0.0.0/8; links w3",
			"own w2, w2; says NoSubnet: no node that may announce has a link with its subnet", nil},
		{"both families on the node that has both", "links w1 eth0=lan4", "own w2, w2", nil},
		{"on two nodes if none has both", "links w1 eth0=lan4; links w2 eth0=lan6; links w3", "own w1, w2", nil},
		{"preferred", "", "own w3, w3", func(s *lb.State) { zones(s, "b", 1) }},
		{"weights add up", "", "own w1, w1", func(s *lb.State) {
			s.L2Advertisements = append(s.L2Advertisements,
				lb.L2Advertisement{Name: "l3", Preferred: []lb.Preference{{Weight: 2, Selector: labelled("zone", "a")[0]}}})
			zones(s, "b", 3)
			zones(s, "a", 2)
		}},
		{"an advertisement prefers among its own nodes", "", "own w1, w1", func(s *lb.State) {
			s.L2Advertisements = append(s.L2Advertisements,
				lb.L2Advertisement{Name: "l3", Scope: lb.Scope{NodeSelectors: labelled("zone", "a")},
					Preferred: []lb.Preference{{Weight: 100, Selector: labelled("zone", "b")[0]}}})
		}},
		{"preferred but held down", "held w3", "own w1, w1", func(s *lb.State) { zones(s, "b", 1) }},
		{"the Service's own selector", "nodes w3", "own w3, w3", nil},
		{
			"a selector that matches nothing",
			"nodes none", "own -, -; says NodeNotSelected: w1, w2, w3 by the Service's holdfast.dev/node-selector", nil,
		},
		{
			"an advertisement that selects no node",
			"", "own -, -; says NodeNotSelected: w1, w2, w3 by nodeSelectors of L2Advertisement nowhere",
			func(s *lb.State) {
				s.L2Advertisements = []lb.L2Advertisement{{
					Name: "nowhere", Scope: lb.Scope{NodeSelectors: labelled("name", "none")},
				}}
			},
		},
		{"a node without a Node object", "nodes none", "own -, -; says NodeNotSelected: w9, w1, w2, w3 by the Service's",
			func(s *lb.State) { s.Members["w9"] = true }},
		{"policy Local counts more than any rank", "local w3; drain w3; links w3 eth0=10.0.0.0/8",
			"own w3, w3; says no node that may announce has a link with its subnet", nil},
		{
			"excluded is not draining: it never announces",
			"exclude w1 w2 w3", "own -, -; says NodeExcluded: w1, w2, w3 by the label node.kubernetes.io/exclude", nil,
		},
	}},
	// Trap: an address stays with an owner that cannot serve it (MetalLB: a speaker without NET_RAW is a member like
	// any other).
	{"unfit", "", []row{
		{
			"one boots",
			"boot w1",
			"own w2, w2; route w2 w3; here KubeProxyNotReady KubeProxyNotReady; w1 announces 0, yields 2, routes 0",
			nil,
		},
		{
			"one boots that alone has an endpoint for policy Local",
			"boot w2; local w2", "own -, -; l2 NoEligibleNode -; says KubeProxyNotReady: w2", nil,
		},
		{"all boot", "boot w1 w2 w3", "own -, -; route -; l2 NoEligibleNode -; says KubeProxyNotReady: w1, w2, w3", nil},
		{"a node that boots ranks behind all others", "boot w1; drain w2 w3", "own w2, w2; route w2 w3", nil},
		// Trap: a reload of a firewall takes kube-proxy's rules away, and the node goes on announcing until kube-proxy
		// notices.
		{"one's rules are gone", "rulesgone w1",
			"own w2, w2; route w2 w3; here KubeProxyNotReady KubeProxyNotReady; w1 announces 0, yields 2, routes 0", nil},
		{"all nodes' are", "rulesgone w1 w2 w3", "own w1, w1; route w1 w2 w3; here Announced Announced; " +
			"says on every node that may announce the rules of kube-proxy are gone (KubeProxyNotReady); " +
			"bgpsays advertised by w1, w2, w3 (rules of kube-proxy are gone on w1, w2, w3: KubeProxyNotReady)", nil},
		{"all but one's, which boots", "rulesgone w1 w2; boot w3", "own w1, w1; route w1 w2; says kube-proxy are gone", nil},
		{"one's are gone, and another one drains", "rulesgone w1; drain w2",
			"own w3, w3; route w3; bgpsays advertised by w3 (not w1: KubeProxyNotReady; bgpsays w2: NodeDraining)", nil},
		{"the rules count more than draining", "rulesgone w1 w3; drain w2", "own w2, w2; route w2", nil},
		{"and more than the subnet", "rulesgone w1 w3; links w2 eth0=10.0.0.0/8",
			"own w2, w2; route w2; says no node that may announce has a link with its subnet", nil},
		{
			"a route ends at once also where the node drains",
			"rulesgone w1; drain w1; advertised", "w1 announces 0, yields 2, routes 0", nil,
		},
		{
			"one cannot filter",
			"ranged; unfiltered w1", "own w2, w2; route w2 w3; here FilterNotInForce FilterNotInForce", nil,
		},
		{"one cannot filter, but there are no ranges", "unfiltered w1", "own w1, w1; route w1 w2 w3", nil},
		{"filtering counts more than draining", "ranged; unfiltered w1 w3; drain w2", "own w2, w2; route w2", nil},
		{"and more than the subnet", "ranged; unfiltered w1 w3; links w2 eth0=10.0.0.0/8",
			"own w2, w2; says no node that may announce has a link with its subnet", nil},
		{
			"no node can filter",
			"ranged; unfiltered w1 w2 w3",
			"own -, -; route -; l2 FilterNotInForce -; here FilterNotInForce FilterNotInForce; " +
				"says no node that may announce can keep the filter of the source ranges in force (w1, w2, w3)", nil,
		},
		{
			"no node that may announce can filter",
			"ranged; unfiltered w1 w2; nodes w1 w2", "own -, -; route -; says (w1, w2)", nil,
		},
		{"no node can filter, but there are no ranges", "unfiltered w1 w2 w3", "own w1, w1; route w1 w2 w3", nil},
		{"one's sockets are refused", "links w1 !eth0=lan", "own w2, w2; route w1 w2 w3", nil},
		{"on one of its links", "links w1 !eth0=lan eth1=lan", "own w1, w1; route w1 w2 w3", nil},
		{"they count more than draining", "links w1 !eth0=lan; links w3 !eth0=lan; drain w2", "own w2, w2; route w1 w3", nil},
		{"all nodes' are refused", "links w1 !eth0=lan; links w2 !eth0=lan; links w3 !eth0=lan",
			"own w1, w1; says no node that may announce has a link to do so", nil},
	}},
	{"yield", "", []row{
		{"owned here", "", "w1 announces 2, yields 0, routes 2", nil},
		{"drained", "drain w1", "w1 announces 0, yields 2, routes 0", nil},
		{"drained, and it hears badly", "drain w1; deaf", none + "NodeDraining NodeDraining", nil},
		{"no endpoint serves", "idle", none + "NoServingEndpoint NoServingEndpoint", nil},
		// It stops at once: it would let every client in.
		{"it must not let clients in", "ranged; unfiltered w1; closed", none + "FilterNotInForce FilterNotInForce", nil},
	}},
	// A probe finds out whether another machine has the address.
	{"probes", "", []row{
		{"a new Service", "norecord", "probes 192.0.2.10 2001:db8::10", nil},
		{"another node had one address", "norecord; previous w1", "probes 2001:db8::10", func(s *lb.State) {
			s.Here.Previous.Owners = s.Here.Previous.Owners.Put(v4, "w2")
		}},
		{
			"by the record one was announced",
			"", "probes 192.0.2.10", func(s *lb.State) { s.Services[0].AnnouncedBy = s.Services[0].AnnouncedBy[1:] },
		},
		{"another Service announced them", "twin w2; norecord", "probes -", nil},
	}},
	// An address of a Service with policy Local, whose first endpoint on w1 comes, stays with its former owner w2 until
	// kube-proxy of w1 serves that endpoint, unless w2 does not go on.
	//
	// Traps: the new owner drops what its kube-proxy does not serve yet; a takeover from a dead node waits.
	{"arrival", "local w1 w2; previous w2; unserved", []row{
		{"not served yet", "", waits, nil},
		{"served", "", takes + "; relays " + toW2 + "; probes -", func(s *lb.State) { s.Here.Unserved = nil }},
		{
			"another Service is not served yet",
			"", takes, func(s *lb.State) { s.Here.Unserved = map[lb.Key]bool{{Name: "other"}: true} },
		},
		{"the former owner drains", "drain w2", waits, nil},
		{"its speaker is about to stop", "stop w2", waits, nil},
		{"its rules are gone", "rulesgone w2", "owner w1", nil},
		{"it is excluded", "exclude w2", waits, nil},
		{"a Service that shares the addresses is served", "twin w1 w2",
			"w1 announces 0, yields 2, routes 2; owner w2; here KubeProxyNotReady KubeProxyNotReady; relays", nil},
		{"it is dead", "dead w2", "owner w1", nil},
		{"its speaker has left", "left w2", "owner w1", nil},
		{"its speaker is down", "down w2", "owner w1", nil},
		{"it stepped back", "held w2", "owner w1", nil},
		{"it was booted", "boot w2", "owner w1", nil},
		{"its Node is gone", "gone w2", "owner w1", nil},
		{"it has no endpoint left", "served w1", "owner w1", nil},
		{"its link is down", "links w2", "owner w1", nil},
		{"its link is silent", "links w2 ~eth0=lan", "owner w1", nil},
		{"its filter is not in force", "ranged; unfiltered w2", "owner w1", nil},
		{"this node announces it already", "previous w1", "owner w1", nil},
		{"no node announced it", "previous", "owner w1", nil},
		{"a new speaker", "", "owner w1", func(s *lb.State) { s.Here.Previous = nil }},
	}},
	// While the owner's speaker is down nothing moves, and the next in rank answers with the MAC of the owner's link.
	{"stand-in", "down w1", []row{
		{"the next in rank", "", "stands w2 for w1; l2 Announced w1", nil},
		{"for the link that has the subnet", "links w1 eth9 eth0=lan", "stands w2 for w1", nil},
		// Trap: on another link the MAC that it gives is not there.
		{
			"on the link of that MAC only",
			"links w1 eth0=lan eth1=10.0.0.0/8; links w2 eth0=lan eth1=10.0.0.0/8", "on w2 eth0", nil,
		},
		{
			"on the link with the same subnet, whatever its name",
			"links w1 eth0=lan eth1=10.0.0.0/8; links w2 eth0=10.0.0.0/8 ens5=lan", "on w2 ens5", nil,
		},
		{
			"two links without subnets: the one with the name",
			"links w1 eth0 eth1; links w2 eth1 eth0; links w3", "on w2 eth0", nil,
		},
		{"on no link that may not announce", "links w1 eth0=lan; links w2 veth1=lan eth0=lan", "on w2 eth0", nil},
		{"the next one has no link there", "links w1 eth0; links w2 eth1; links w3 eth0", "on w3 eth0; l2 Announced w1", nil},
		{"none has a link there", "links w1 eth0=lan; links w2 eth1; links w3 eth1", "stands -; l2 Announced w1", nil},
		{"not one whose speaker is down too", "down w2", "stands w3 for w1", nil},
		{"none if all speakers are down", "down w2 w3", "stands -; l2 Announced w1", nil},
		{"none if the owner's links are not known", "unknown w1", "stands -; l2 Announced w1", nil},
		{"its filter is not in force: the owner's is", "", "stands w1 for w2", func(s *lb.State) {
			s.SpeakerDown, s.Here.Unfiltered = map[string]bool{"w2": true}, true
			s.HeldDown = map[string]bool{"w1": true, "w3": true}
			s.Services[0].Access = lb.Access{Restricted: true}
		}},
	}},
	// An address that one node alone may announce is answered for it while its speaker is away, by any node that the
	// advertisement lets announce: packets never pass that one. So it is asked neither for an endpoint nor for
	// kube-proxy nor for its filter. A node that said goodbye is replaced so only where no other may own the address.
	//
	// Trap: new clients of a Local Service with one endpoint get no answer during a rolling update.
	{"stand-in of the only owner", "v4only; local w1", []row{
		{"killed", "down w1", "stands w2 for w1", nil},
		{"said goodbye", "left w1", "stands w2 for w1; l2 Announced w1", nil},
		{"said goodbye more than two minutes ago", "left w1; forget w1", "stands -", nil},
		{"its node goes down", "left w1; shutdown w1", "stands -", nil},
		{"its node is gone", "left w1; gone w1", "stands -", nil},
		{"its node is excluded", "left w1; exclude w1", "stands -", nil},
		{"its endpoint moved to no node", "left w1; served w4", "stands -", nil},
		{"another node may own it", "left w1; served w1 w3", "stands -", nil},
		{"another node may own it, killed", "down w1; served w1 w3", "stands w2 for w1", nil},
		{"the stand-in boots", "down w1; boot w2", "stands w2 for w1", nil},
		{"the rules of the stand-in are gone", "down w1; rulesgone w2", "stands w2 for w1", nil},
		{"the stand-in does not filter", "down w1; ranged; unfiltered w2", "stands w2 for w1", nil},
		{"the next in rank is excluded", "down w1; exclude w2", "stands w3 for w1", nil},
		{"its network is unavailable", "left w1; nonet w2", "stands w3 for w1", nil},
		{"it is not selected", "down w1; l2nodes w1 w3", "stands w3 for w1", nil},
		{"no other is selected", "down w1; l2nodes w1", "stands -", nil},
		{"no other is selected, said goodbye", "left w1; l2nodes w1", "stands -", nil},
		{"the owner is not selected", "left w1; l2nodes w2 w3", "stands -", nil},
		{"the Service selects another", "left w1; nodes w1 w3", "stands w3 for w1", nil},
		{"its sockets are refused", "down w1; links w2 !eth0=lan", "stands w3 for w1", nil},
		{"it is held down", "left w1; held w2", "stands w3 for w1", nil},
		{"it stops too", "down w1; stop w2", "stands w3 for w1", nil},
		{"its speaker is away too", "left w1; down w2", "stands w3 for w1", nil},
		{"the owner's filter was not in force", "left w1; ranged; unfiltered w1", "stands -", nil},
		{"no endpoint is ready", "left w1; idle", "stands -", nil},
		{"two Services share it", "left w1; twin w1", "stands w2 for w1", nil},
	}},
	// An address that another node has by a newer spec is left to it, until that node is dead.
	{"newer owner", "v4only", []row{
		{"another node", "newer w3", "w1 announces 0, yields 1, routes 1; owner w3", nil},
		{"a dead node", "newer w3; dead w3", "own w1, -; owner w1", nil},
		{"a node without speaker", "newer w3; down w3", "own w1, -; owner w1", nil},
		{"a node that is not known", "newer w9", "own w1, -; owner w1", nil},
	}},
	{"former owner, to which w1 relays older connections", "", []row{
		{"an address that this node owned", "previous w1", "relays ", nil},
		{"an address that no node owned", "previous", "relays ", nil},
		{"that another load balancer announced there", "previous; record w3", "relays " + toW3, nil},
		{"on a node that died", "previous; record w3; dead w3", "relays ", nil},
		{"or here", "previous; record w1", "relays ", nil},
		{"an owner counts more than the record", "previous w2; record w3", "relays " + toW2, nil},
		{"this node was the owner, whatever the record", "previous w1; record w3", "relays ", nil},
		{"a relay counts more than the record", "relayed w2; record w3", "relays " + toW2, nil},
		{"an address that moved here", "previous w2", "relays " + toW2, nil},
		{"moved from a node that drains", "previous w2; drain w2", "relays " + toW2, nil},
		{"from a node whose speaker is down", "previous w2; down w2", "relays " + toW2, nil},
		{"from a node that died", "previous w2; dead w2", "relays ", nil},
		{"from one whose speaker has left", "previous w2; left w2", "relays " + toW2, nil},
		{"from one whose Node is gone", "previous w2; gone w2", "relays ", nil},
		{"what was relayed goes on", "relayed w2", "relays " + toW2, nil},
		{"until the former owner dies", "relayed w2; dead w2", "relays ", nil},
		{"though its speaker stops", "relayed w2; left w2", "relays " + toW2, nil},
		{"though no node may announce it now", "relayed w2; idle", "relays " + toW2, nil},
		{"unless the former owner dies then", "relayed w2; idle; dead w2", "relays ", nil},
		{"or no advertisement selects it", "relayed w2; nol2", "relays ", nil},
		{"an address that moved from another node to none", "previous w2; idle", "relays ", nil},
		{"an address that moved on, and then to none", "relayed w2; idle", "relays ", func(s *lb.State) {
			for a, r := range s.Here.Previous.Relays.All() {
				r.Until = start
				s.Here.Previous.Relays = s.Here.Previous.Relays.Put(a, r)
			}
		}},
		{"an address that waits for its filter", "relayed w2; closed; ranged", "relays " + toW2, nil},
		{"a new speaker, and another announced it", "record w3", "relays " + toW3, nil},
		{"another that is dead: the runner-up", "record w3; dead w3", "relays " + toW2, nil},
		{"the record is late: the runner-up", "", "relays " + toW2, nil},
		{"the runner-up by rank", "drain w2", "relays " + toW3, nil},
		{"a speaker that was killed continues its relays", "inherits w3", "relays " + toW3, nil},
		{"whatever Nodes list their next hops", "inherits w3", "relays " + toW3,
			func(s *lb.State) { s.Nodes["w2"] = lb.Node{Name: "w2", Addresses: addrs("192.0.2.3", "fe80::3")} }},
		{"but not to a dead node", "inherits w3; dead w3", "relays " + toW2, nil},
		{"nor to an address of no node", "inherits w9", "relays " + toW2, nil},
		{"the record counts more than an inherited relay", "record w3; inherits w2", "relays " + toW3, nil},
		{"an address that no node announced yet", "norecord", "relays ", nil},
		{"no other node", "dead w2 w3", "relays ", nil},
	}},
	{"next hop from w1 to w2", "previous w2", []row{
		{"its Node's address where that is on the link", "", "relays w2 at 192.0.2.22 eth0, w2 at 2001:db8::22 eth0",
			func(s *lb.State) { s.Nodes["w2"] = lb.Node{Name: "w2", Addresses: addrs("192.0.2.22", "2001:db8::22")} }},
		{"metadata without an address", "links w2 eth0=lan", "relays w2 at no way", nil},
		{"beyond a router", "links w2 eth0=198.51.100.0/24", "relays w2 at no way", nil},
		{"the LAN is recognized by its IPv4 subnet", "", "relays " + toW2, func(s *lb.State) {
			for _, name := range []string{"w1", "w2", "w3"} {
				s.Links[name][0].Prefixes = s.Links[name][0].Prefixes[:1]
			}
		}},
		{
			"the link of the address before others",
			"", "relays " + toW2, func(s *lb.State) { beside(s, "adm0=10.0.0.0/24", "10.0.0.1", "10.0.0.2") },
		},
		{"else another that announces", "", "relays w2 at 10.0.0.2 adm0, w2 at fe80::a:2 adm0", func(s *lb.State) {
			beside(s, "adm0=10.0.0.0/24", "10.0.0.1 fe80::a:1", "10.0.0.2 fe80::a:2")
			for _, name := range []string{"w1", "w2", "w3"} {
				s.Links[name][1].Prefixes, s.Links[name][1].Addresses = nil, nil
			}
		}},
		{"never a container network, alike on each node", "", "relays w2 at no way", func(s *lb.State) {
			beside(s, "veth9=172.17.0.0/16", "172.17.0.1", "172.17.0.1")
			for _, name := range []string{"w1", "w2", "w3"} {
				s.Links[name][1].Prefixes, s.Links[name][1].Addresses = nil, nil
			}
		}},
		{"an advertisement for other nodes than before", "l2nodes w1", "relays " + toW2, nil},
	}},
	// A node that is drained or excluded goes on with its routes for a while, marked as such, if another node serves;
	// it keeps them if none does. It begins no route before its kube-proxy serves what arrives.
	//
	// Traps: a drained node attracts traffic until it is off, or withdraws before routers have chosen others; a route
	// is advertised before the local endpoint is programmed.
	{"leave", "nol2; v4only; advertised", []row{
		{
			"drained",
			"drain w1",
			"left 3s; bgp Announced w2 w3; here NoAdvertisement NodeDraining; bgpsays advertised by w2, w3 (not w1: " +
				"NodeDraining)",
			nil,
		},
		{"for a second", "drain w1; since 1s", "left 2s; bgp Announced w2 w3", nil},
		{"for three", "drain w1; since 3s", "left at once; bgp Announced w2 w3; here NoAdvertisement NodeDraining", nil},
		{
			"drained, and advertised nothing before",
			"drain w1", "left at once; bgp Announced w2 w3",
			func(s *lb.State) { s.Here.Advertised = lb.Here{}.Advertised },
		},
		{"uncordoned in time", "since 1s", "left stays; bgp Announced w1 w2 w3", nil},
		{"all are drained", "drain w1 w2 w3; since 1s", "left stays; bgp Announced w1 w2 w3", nil},
		{"the others are dead", "drain w1; dead w2 w3", "left stays; bgp Announced w1", nil},
		{"the others' speakers stop", "drain w1; stop w2 w3", "left stays; bgp Announced w1 w2 w3", nil},
		{"the others' speakers are down", "drain w1; down w2 w3", "left stays; bgp Announced w1 w2 w3", nil},
		{"only its speaker stops", "stop w1", "left stays; bgp Announced w1 w2 w3", nil},
		{"the others boot", "drain w1; boot w2 w3", "left stays; bgp Announced w1", nil},
		{"the others have no session", "drain w1; sessionless w2 w3", "left stays; bgp Announced w1 w2 w3", nil},
		{
			"the others have one for the other family only",
			"drain w1; no4session w2 w3", "left stays; bgp Announced w1 w2 w3", nil,
		},
		{"the others have one for this family only", "drain w1; no6session w2 w3", "left 3s; bgp Announced w2 w3", nil},
		{"one of them has", "drain w1; sessionless w2", "left 3s; bgp Announced w2 w3", nil},
		{"the others have no peer", "drain w1; nopeer w2 w3", "left stays; bgp Announced w1", nil},
		{"Local: no other has an endpoint", "drain w1; local w1", "left stays; bgp Announced w1", nil},
		{"Local: another has", "drain w1; local w1 w2", "left 3s; bgp Announced w2", nil},
		{
			"Local: only another has",
			"drain w1; local w2", "left at once; bgp Announced w2; here NoAdvertisement NoLocalEndpoint", nil,
		},
		{"excluded", "exclude w1", "left 3s; bgp Announced w2 w3; here NoAdvertisement NodeExcluded", nil},
		{"excluded for three seconds", "exclude w1; since 3s", "left at once; here NoAdvertisement NodeExcluded", nil},
		{"excluded, and no other has an endpoint", "exclude w1; local w1", "left at once; bgp NoEligibleNode -", nil},
		{
			"kube-proxy does not serve its endpoint yet",
			"local w1 w2; unserved", "left at once; bgp Announced w1 w2; here NoAdvertisement KubeProxyNotReady",
			func(s *lb.State) { s.Here.Advertised = lb.Here{}.Advertised },
		},
		{"the same of a route that is there", "local w1 w2; unserved", "left stays; bgp Announced w1 w2", nil},
		{"has no peer", "drain w1; nopeer w1", "left at once; bgp Announced w2 w3; here NoAdvertisement NoPeer", nil},
		{
			"another address in the aggregate stays",
			"drain w1; aggregate", "routes 192.0.2.0/28 [r1v4], 192.0.2.11/32 [r1v4]", localNeighbour("w1"),
		},
		{
			"all in the aggregate leave",
			"drain w1; aggregate", "routes 192.0.2.0/28 [r1v4] leaving, 192.0.2.11/32 [r1v4] leaving",
			localNeighbour("w1", "w2"),
		},
		{"no aggregate", "drain w1", "routes 192.0.2.10/32 [r1v4] leaving, 192.0.2.11/32 [r1v4]", localNeighbour("w1")},
		{"shared, one stays", "drain w1; twin", "routes 192.0.2.10/32 [r1v4]; left stays", func(s *lb.State) {
			s.Services[1].Local, s.Services[1].Backends = true, servedOn("w1")
		}},
		{"shared, both leave", "drain w1; twin w2", "left 3s", nil},
	}},
	{"an endpoint serves one family", "", []row{
		{
			"pods have IPv4 only",
			"backends 4/all=w2",
			"own w1, -; route w1 w2 w3; l2 NoServingEndpoint w1; bgp NoServingEndpoint w1 w2 w3; " +
				"routes 192.0.2.10/32 [r1v4]; here Announced Announced; says no endpoint serves a port of the Service over IPv6; " +
				"bgpsays advertised by w1, w2, w3; bgpsays the rest waits: no endpoint serves a port of the Service over IPv6",
			nil,
		},
		{
			"pods have IPv6 only",
			"backends 6/all=w2", "own -, w1; route -; routes 2001:db8::10/128 [r1v6]; says over IPv4", nil,
		},
		{
			"families on different nodes, Local",
			"local; backends 4/all=w1 6/all=w2",
			"own w1, w2; route w1; l2 Announced w1 w2; bgp Announced w1 w2; routes 192.0.2.10/32 [r1v4]", nil,
		},
		{
			"both families on the node that serves both, Local",
			"local; backends 4/all=w1,w3 6/all=w2,w3", "own w3, w3; route w1 w3; l2 Announced w3", nil,
		},
		{
			"the link's subnet counts more than the other family",
			"local; backends 4/all=w1,w3 6/all=w2,w3; links w3", "own w1, w2", nil,
		},
		{"neither family, Local", "local; backends 4/all=w1; v4only", "own w1, -; here Announced Announced", nil},
		{
			"a node that serves the other family only, Local",
			"local; backends 4/all=w2 6/all=w3", "own w2, w3; here NoLocalEndpoint NoLocalEndpoint", nil,
		},
		{
			"kube-proxy ignores the Service",
			"labelled",
			"own -, -; route -; l2 IgnoredByKubeProxy -; bgp IgnoredByKubeProxy -; " +
				"says kube-proxy does not serve the Service, since it or its EndpointSlices have the label " +
				"service.kubernetes.io/service-proxy-name",
			nil,
		},
	}},
	{"an endpoint serves some ports", "ports 80 443", []row{
		{
			"a port that no endpoint serves",
			"backends 46/80=w2",
			"own w1, w1; l2 PortNotServed w1; bgp PortNotServed w1 w2 w3; here Announced Announced; " +
				"says no endpoint serves port 443/TCP over IPv4; bgpsays advertised by w1, w2, w3; " +
				"bgpsays no endpoint serves port 443/TCP over IPv4; " +
				"bgpsays no endpoint serves port 443/TCP over IPv6", nil,
		},
		{
			"in one family",
			"backends 4/80,443=w2 6/80=w2",
			"own w1, w1; l2 PortNotServed w1; says no endpoint serves port 443/TCP over IPv6", nil,
		},
		{
			"both ports on different nodes, Cluster",
			"backends 46/80=w1 46/443=w2", "own w1, w1; l2 Announced w1; bgp Announced w1 w2 w3", nil,
		},
		{
			"the node that serves most, Local",
			"local; backends 46/80=w1,w2 46/443=w2",
			"own w2, w2; l2 Announced w2; bgp Announced w2; route w2; " +
				"bgpsays advertised by w2 (not w1: PortNotServed); here NotOwner PortNotServed", nil,
		},
		{"a port that no endpoint serves counts for none, Local", "ports 80 443 22; local; backends 46/80=w1,w2 46/443=w2",
			"own w2, w2; l2 PortNotServed w2; bgp PortNotServed w2; says no endpoint serves port 22/TCP over IPv4", nil},
		{
			"on different nodes, Local",
			"local; backends 46/80=w1 46/443=w2",
			"own w1, w1; l2 PortNotServed w1; bgp PortNotServed w1 w2; route w1 w2; " +
				"says port 443/TCP over IPv4 is served on w2 only; bgpsays advertised by w1, w2; " +
				"bgpsays port 80/TCP, 443/TCP over IPv4 is served on w1, w2 only",
			nil,
		},
		{
			"the link's subnet counts more, Local",
			"local; backends 46/80=w1,w2 46/443=w2; links w2",
			"own w1, w1; l2 PortNotServed w1; says port 443/TCP over IPv4 is served on w2 only", nil,
		},
		{
			"the number of ports counts more than draining, Local",
			"local; backends 46/80=w1,w2 46/443=w2; drain w2", "own w2, w2; route w2", nil,
		},
		{
			"the node that serves all has no session, Local",
			"local; backends 46/80=w1,w2 46/443=w2; sessionless w2", "own w2, w2; route w1 w2", nil,
		},
		{
			"the node that serves all is excluded, Local",
			"local; backends 46/80=w1,w2 46/443=w2; exclude w2",
			"own w1, w1; route w1; l2 PortNotServed w1; says port 443/TCP over IPv4 is served on w2 only", nil,
		},
		{"leaves to a node that serves more, Local", "local; backends 46/80=w1,w2 46/443=w2; advertised", "left 3s", nil},
	}},
	{"the last endpoints on a node terminate", "local", []row{
		{
			"another has a ready one",
			"backends 46/all=w1!,w2; advertised",
			"own w2, w2; bgp Announced w2; left 3s; here NotOwner NoLocalEndpoint; " +
				"bgpsays advertised by w2 (not w1: NoLocalEndpoint)", nil,
		},
		{"no other has one", "backends 46/all=w1!", "own w1, w1; bgp Announced w1; here Announced Announced", nil},
		{"all terminate", "backends 46/all=w1!,w2!", "own w1, w1; bgp Announced w1 w2", nil},
		{"the other boots", "backends 46/all=w1!,w2; boot w2", "own w1, w1; bgp Announced w1", nil},
		{"as draining", "backends 46/all=w1!,w2; drain w2", "own w1, w1; bgp Announced w1 w2", nil},
		{"of one port", "ports 80 443; backends 46/80=w1!,w2 46/443=w1,w2", "own w1, w1; bgp Announced w1 w2", nil},
		{"of one family", "backends 4/all=w1!,w2 6/all=w1,w2", "own w2, w1; route w2; bgp Announced w1 w2", nil},
	}},
	{"aggregated routes", "aggregate; nol2", []row{
		{"every node serves", "", "routes 192.0.2.0/28 [r1v4], 2001:db8::10/124 [r1v6]; bgp Announced w1 w2 w3", nil},
		{
			"Local: nodes that cannot serve may have the route",
			"local w1",
			"routes 192.0.2.0/28 [r1v4], 192.0.2.10/32 [r1v4], 2001:db8::10/124 [r1v6], " +
				"2001:db8::10/128 [r1v6]; bgpsays advertised by w1; bgpsays 192.0.2.10/32 is advertised beside " +
				"192.0.2.0/28, since w2, w3 may have that route and " +
				"cannot serve the address", nil,
		},
		{"Local: all nodes serve", "local w1 w2 w3", "routes 192.0.2.0/28 [r1v4], 2001:db8::10/124 [r1v6]", nil},
		{
			"Local: the others have no peer",
			"local w1; nopeer w2 w3", "routes 192.0.2.0/28 [r1v4], 2001:db8::10/124 [r1v6]", nil,
		},
		{
			"Local: the others are excluded, or not selected",
			"local w1; exclude w2", "routes 192.0.2.0/28 [r1v4], 2001:db8::10/124 [r1v6]",
			func(s *lb.State) { s.BGPAdvertisements[0].NodeSelectors = labelled("name", "w1", "w2") },
		},
		{
			"of one family",
			"local; backends 4/all=w1 6/all=w1,w2,w3",
			"routes 192.0.2.0/28 [r1v4], 192.0.2.10/32 [r1v4], 2001:db8::10/124 [r1v6]", nil,
		},
		{
			"the Service selects nodes",
			"nodes w1 w2",
			"routes 192.0.2.0/28 [r1v4], 192.0.2.10/32 [r1v4], 2001:db8::10/124 [r1v6], 2001:db8::10/128 [r1v6]", nil,
		},
		{"a drained node serves", "drain w3", "routes 192.0.2.0/28 [r1v4], 2001:db8::10/124 [r1v6]", nil},
		{
			"with the attributes of the longest route",
			"local w1; v4only",
			"routes 192.0.2.0/24 [r1v4] localpref 10 prepend 0 med none, " +
				"192.0.2.0/28 [r1v4] localpref 20 prepend 0 med none, 192.0.2.10/32 [r1v4] localpref 20 prepend 0 " +
				"med none; bgp Announced w1",
			func(s *lb.State) {
				s.BGPAdvertisements = []lb.BGPAdvertisement{
					{Name: "wide", AggregationLength: 24, LocalPref: 10},
					{Name: "long", AggregationLength: 28, LocalPref: 20},
				}
			},
		},
		{"not beside a route of its own", "local w1; v4only", "routes 192.0.2.0/24 [r1v4] localpref 10 prepend 0 med none, " +
			"192.0.2.10/32 [r1v4] localpref 20 prepend 0 med none; bgp Announced w1", func(s *lb.State) {
			s.BGPAdvertisements = []lb.BGPAdvertisement{
				{Name: "wide", AggregationLength: 24, LocalPref: 10},
				{Name: "own", AggregationLength: 32, LocalPref: 20},
			}
		}},
	}},
	{"cut off", "dead w2 w3", []row{
		{"all nodes are in reach", "", all + "Announced Announced", nil},
		{"the node that serves is out of reach", "cut w2 w3", none + "CutOff CutOff; writers w1, w1; " +
			"bgpsays node w1 is cut off from half of the speakers or more and reaches no node with a serving " +
			"endpoint (w2); says node w1 is cut off", nil},
		{"another side runs, and writes", "cut w2 w3; divided", none + "CutOff CutOff; writers -, -", nil},
		{"even if this node announced the addresses", "cut w2 w3; had", none + "CutOff CutOff", nil},
		{"in doubt it takes nothing", "doubt w2 w3", routes + "CutOff Announced", nil},
		{"in doubt it keeps what it announces", "doubt w2 w3; had", all + "Announced Announced", nil},
		{"one node is out of reach, the other in doubt", "served w2 w3; doubt w3",
			routes + "CutOff Announced", func(s *lb.State) { s.Here.CutOffFrom["w2"] = true }},
		{"one node that serves is in reach", "served w2 w3; cut w2", all + "Announced Announced", nil},
		{"a node without a speaker serves", "served w2 w9; cut w2 w3", all + "Announced Announced", nil},
		{"an endpoint on this node", "served w1 w2; cut w2 w3", all + "Announced Announced", nil},
		{"an endpoint on no node", "anywhere; cut w2 w3", all + "Announced Announced", nil},
		{"only endpoints on no node", "served; cut w2 w3", all + "Announced Announced", nil},
		{"no endpoint that serves", "idle; cut w2 w3", none + "NoServingEndpoint NoServingEndpoint", nil},
		{"policy Local with an endpoint on this node", "local w1 w2; cut w2 w3", all + "Announced Announced", nil},
		{"policy Local without", "local w2; cut w2 w3", none + "NoEligibleNode NoEligibleNode", nil},
		{
			"another Service on the address is in reach",
			"twin w1; cut w2 w3", "w1 announces 2, yields 0, routes 2; l2 Announced w1", nil,
		},
		{
			"it does not stand in for a node whose speaker is down",
			"cut w2 w3; held w1; down w4", none + "CutOff CutOff", func(s *lb.State) {
				s.Nodes["w4"], s.Members["w4"], s.Links["w4"] = lb.Node{Name: "w4"}, true, links("w4", "eth0=lan")
			},
		},
	}},
	// No node reaches another one, and all live: who has an endpoint owns.
	{"the network between the nodes fails", "path; cut w2 w3", []row{
		{"another node has the endpoint", "served w2", "l2 Announced w2; here NotOwner NoPeer", nil},
		{"two others do", "served w2 w3", "l2 Announced w2; here NotOwner NoPeer", nil},
		{"this node has one, too", "served w1 w2", all + "Announced Announced; own w1, w1", nil},
		{"all do", "served w1 w2 w3", all + "Announced Announced; own w1, w1", nil},
		{"an endpoint on no node", "anywhere", all + "Announced Announced; own w1, w1", nil},
		{"the node with the endpoint may not announce", "served w2; exclude w2", none + "CutOff NoPeer", nil},
		{
			"another Service on the address has one here",
			"served w2; twin w1", "own w1, w1; w1 announces 2, yields 0, routes 2", nil,
		},
		{"no endpoint that serves", "idle", none + "NoServingEndpoint NoServingEndpoint", nil},
	}},
	// What a side of a partition announces although it yields to another. w1 is on this side, w2 and w3 are on the
	// other.
	{"partition", "held w1; cut w2 w3; yieldsto w2 w3; served w1", []row{
		{
			"the other side does not reach the endpoint",
			"apart", all + "Announced Announced; l2 Announced w1; bgp Announced w1", nil,
		},
		{"the other side is not cut off, or reaches this one", "", routes + "NotOwner Announced", nil},
		{"the other side has another endpoint", "apart; served w1 w2", routes + "NotOwner Announced", nil},
		{"an endpoint is on no node", "apart; anywhere", routes + "NotOwner Announced", nil},
		{"an endpoint is on a node without a speaker", "apart; served w1 w9", routes + "NotOwner Announced", nil},
		{"another Service on the address has an endpoint there", "apart; twin w2", routes + "NotOwner Announced", nil},
		{"no node on this side may announce", "apart; exclude w1", none + "NodeExcluded NoEligibleNode", nil},
	}},
	{"cut off and held down", "held w1; cut w2 w3", []row{
		{"it leaves to the others what it cannot serve", "", "w1 announces 0, yields 2, routes 0; here NotOwner NoPeer", nil},
	}},
	// What only this node knows: it does not filter, its kernel refuses the ranges of web, or one address is its own.
	{"withheld", "ranged", []row{
		{"its filter is not in force", "closed",
			none + "FilterNotInForce FilterNotInForce; bgp Announced w2 w3; peers -; l2 FilterNotInForce -; " +
				"writers w1, w1", nil},
		{
			"its kernel refuses the ranges",
			"refused", none + "FilterNotInForce FilterNotInForce; bgp Announced w2 w3; peers -", nil,
		},
		{"so does an aggregate", "closed; aggregate", "routes ; here FilterNotInForce FilterNotInForce", nil},
		{"but not for a Service that the kernel closes", "refused; aggregate",
			"routes 192.0.2.0/28 [r1v4], 2001:db8::10/124 [r1v6]; here FilterNotInForce FilterNotInForce", nil},
		{
			"a Service that shares is not refused",
			"refused; twin", "w1 announces 2, yields 0, routes 2; here FilterNotInForce FilterNotInForce", nil,
		},
		{"an address on its own link", "onlink",
			"announces 2001:db8::10 []; routes 2001:db8::10/128 [r1v6]; " +
				"here FilterNotInForce FilterNotInForce; peers r1v6", nil},
	}},
	{"not withheld", "", []row{
		{"open Services", "closed", all + "Announced Announced", nil},
		{"an open address on its own link", "onlink", all + "Announced Announced", nil},
		{
			"an open Service beside one with ranges",
			"closed; neighbour", webRoutes + "; own w1, w1; here Announced Announced", nil,
		},
		{
			"unless a route covers both",
			"closed; neighbour; aggregate", "routes ; here Announced FilterNotInForce; bgp Announced w2 w3; peers -",
			nil,
		},
		{
			"known to all",
			"closed; unfiltered w1; neighbour; aggregate",
			"routes ; here Announced FilterNotInForce; bgp Announced w2 w3; peers -", nil,
		},
		{"while one with ranges leaves", "closed; neighbour; aggregate", "routes ; own w1, w1", func(s *lb.State) {
			gone := s.Services[1]
			s.Services, s.Leaving = s.Services[:1], []lb.Leaving{{Addresses: gone.Addresses, Served: gone}}
		}},
		{
			"drained it leaves nothing to a node without filter",
			"v4only; neighbour; aggregate; advertised; drain w1; dead w3; unfiltered w2",
			"routes 192.0.2.0/28 [r1v4], 2001:db8::10/124 [r1v6]; left stays", nil,
		},
	}},
	// Without kube-proxy no node filters: what has ranges is announced by none, and takes no route from others.
	{"another data path", "otherpath; unfiltered w1 w2 w3", []row{
		{"no ranges", "", webRoutes + "; own w1, w1; l2 Announced w1; bgp Announced w1 w2 w3; here Announced Announced", nil},
		{"ranges", "ranged", "routes ; own -, -; route -; l2 FilterNotEnforceable -; bgp FilterNotEnforceable -; " +
			"here FilterNotEnforceable FilterNotEnforceable; says nothing enforces the source ranges; " +
			"bgpsays nothing enforces the source ranges of the annotations " +
			"or of the pool, since Holdfast does not filter (dataPath: Other)", nil},
		{"ranges of the pool", "", "routes ; own -, -; route -; l2 FilterNotEnforceable -; bgp FilterNotEnforceable -",
			func(s *lb.State) { s.Pools[0].Restricted = true }},
		{"no node may announce at all", "nodes none", "l2 NoEligibleNode -; says NodeNotSelected: w1, w2, w3", nil},
		{
			"another Service on the address",
			"twin; ranged", "routes ; own -, -", func(s *lb.State) { s.Services[1].Access = lb.Access{} },
		},
		{
			"an aggregate of others",
			"neighbour; aggregate", "routes 192.0.2.0/28 [r1v4], 2001:db8::10/124 [r1v6]; bgp Announced w1 w2 w3", nil,
		},
		{"an aggregate of its own alone", "ranged; aggregate", "routes ; bgp FilterNotEnforceable -", nil},
	}},
	{"on its way to another data path", "otherpath; ranged; unfiltered w1", []row{
		{
			"nodes that still filter announce",
			"", "own w2, w2; route w2 w3; here FilterNotEnforceable FilterNotEnforceable", nil,
		},
	}},
}

type row struct {
	name, orders, want string
	// change does what no order does.
	change func(*lb.State)
}

func TestForNode(t *testing.T) {
	for _, table := range slices.Concat(tables, proxyTables) {
		t.Run(table.about, func(t *testing.T) {
			for _, r := range table.rows {
				s := world(t, table.first+";"+r.orders)
				if r.change != nil {
					r.change(&s)
				}
				check(t, r.name, s, r.want)
			}
		})
	}
}

// TestWithSessions: an outcome of BGP names the peers that have a session, and waits while the first attempts last.
func TestWithSessions(t *testing.T) {
	down := lb.Session{Peer: "r1", State: "active", LastError: `closed by the router: "ticket 17"`}
	connecting, connectingToo := lb.Session{Peer: "r1", State: "active"}, lb.Session{Peer: "r2", State: "active"}
	elsewhere := lb.Session{Peer: "r3", State: "active", LastError: "no route to host"}
	established := lb.Session{Peer: "r2", State: lb.Established}
	for _, tt := range []struct {
		name     string
		nodes    []string
		sessions []lb.Session
		reason   lb.Reason // "" for nothing to write
		message  string
	}{
		{"one of two sessions", []string{"w1"}, []lb.Session{down, established}, lb.Announced, "advertised to r2"},
		{"one of two is up already", []string{"w1"}, []lb.Session{connecting, established}, lb.Announced, "advertised to r2"},
		{
			"other nodes may have other peers",
			[]string{"w1", "w2"}, []lb.Session{down, established}, lb.Announced, "advertised (w1 to r2)",
		},
		{"still connecting", nil, []lb.Session{connecting, connectingToo, elsewhere}, "", "advertised"},
		{"no session was started", nil, nil, "", "advertised"},
		{"no session", nil, []lb.Session{down, connectingToo}, lb.NoSession,
			"no session is established with r1, r2"},
	} {
		got, known := Outcome{
			Reason: lb.Announced, Message: "advertised", Nodes: tt.nodes, Peers: []string{"r1", "r2"},
		}.WithSessions("w1", tt.sessions)
		if known != (tt.reason != "") || known && got.Reason != tt.reason || got.Message != tt.message {
			t.Errorf("%s: known %t, %s: %s", tt.name, known, got.Reason, got.Message)
		}
	}
}

// TestOnLinks: what the links add to an outcome of layer 2. Node w1 owns both addresses, unless the row names another
// owner.
func TestOnLinks(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	theirs := lb.Conflict{MAC: lb.MAC{2, 0, 0, 0, 0, 9}, Link: "eth0"}
	well := lb.AddressState{Links: []string{"eth0"}, Answered: true}
	both := []Announcer{{Address: v4, Node: "w1"}, {Address: v6, Node: "w1"}}
	const foreign = "02:00:00:00:00:09 on eth0 claims 2001:db8::10, which node w1 announces"
	const v4Well = "192.0.2.10 by node w1 on eth0, "
	for _, tt := range []struct {
		name string
		v6   lb.AddressState
		// known, reason, message and record are what is to be written.
		known           bool
		reason          lb.Reason
		message, record string
		conflicts       []string
	}{
		{"announced", lb.AddressState{Links: []string{"eth0", "eth1"}, Answered: true}, true, lb.Announced,
			v4Well + "2001:db8::10 by node w1 on eth0 and eth1", "192.0.2.10=w1,2001:db8::10=w1", nil},
		{"still probing", lb.AddressState{Links: []string{"eth0"}, Pending: true}, false, lb.Announced, "", "", nil},
		{"a foreign machine has it", lb.AddressState{Conflicts: []lb.Conflict{theirs}}, true, lb.AddressConflict,
			v4Well + "2001:db8::10 is in use by 02:00:00:00:00:09 on eth0, seen by node w1", "192.0.2.10=w1", nil},
		{
			"foreign machines on both links have it",
			lb.AddressState{Conflicts: []lb.Conflict{theirs, {MAC: theirs.MAC, Link: "eth1"}}}, true,
			lb.AddressConflict,
			v4Well + "2001:db8::10 is in use by 02:00:00:00:00:09 on eth0 and 02:00:00:00:00:09 on eth1, seen by node w1",
			"192.0.2.10=w1", nil,
		},
		{
			"a foreign machine on one of two links has it",
			lb.AddressState{Conflicts: []lb.Conflict{theirs}, Links: []string{"eth1"}, Answered: true}, true,
			lb.AddressConflict,
			v4Well + "2001:db8::10 by node w1 on eth1 (not on eth0, where it is in use by 02:00:00:00:00:09)",
			"192.0.2.10=w1,2001:db8::10=w1", []string{foreign},
		},
		{
			"a foreign machine claims it later",
			lb.AddressState{Conflicts: []lb.Conflict{theirs}, Links: []string{"eth0"}, Answered: true}, true,
			lb.Announced, v4Well + "2001:db8::10 by node w1 on eth0 (02:00:00:00:00:09 on eth0 claims it too)",
			"192.0.2.10=w1,2001:db8::10=w1", []string{foreign},
		},
		{
			"no link",
			lb.AddressState{}, true, lb.NoLink,
			v4Well + "2001:db8::10 is to be announced from node w1, which has no link to do so", "192.0.2.10=w1", nil,
		},
		{"sockets are refused", lb.AddressState{Refused: []string{"open socket on eth1: no"}}, true, lb.SocketRefused,
			v4Well + "2001:db8::10 is to be announced from node w1, which cannot answer for it: " +
				"open socket on eth1: no", "192.0.2.10=w1", nil},
		{
			"one socket is refused",
			lb.AddressState{Answered: true, Links: []string{"eth0"}, Refused: []string{"open socket on eth1: no"}},
			true, lb.Announced, v4Well + "2001:db8::10 by node w1 on eth0", "192.0.2.10=w1,2001:db8::10=w1", nil,
		},
	} {
		well.Address, tt.v6.Address = v4, v6
		states := []lb.AddressState{well, tt.v6}
		o := Outcome{Reason: lb.Announced, Announcers: both}
		got, record, known := o.OnLinks("w1", states)
		differs := known != tt.known || got.Reason != tt.reason || record != tt.record ||
			!slices.Equal(o.Conflicts("w1", states), tt.conflicts)
		if differs {
			t.Errorf("%s: %v, known %v, record %q, conflicts %q", tt.name, got.Reason, known, record, o.Conflicts("w1", states))
		}
		if diff := cmp.Diff(tt.message, got.Message); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if _, _, known := (Outcome{Announcers: both}).OnLinks("w1", nil); known {
		t.Error("the state of an address that layer 2 does not know yet counts as known")
	}
	o := Outcome{
		Reason: lb.NoEligibleNode, Message: "no node may announce",
		Announcers: []Announcer{{Address: v4, Node: "w2", Remark: "far away"}},
	}
	got, record, known := o.OnLinks("w1", nil)
	differs := !known || got.Message != "192.0.2.10 by node w2 (far away); the rest waits: no node may announce" ||
		record != "192.0.2.10=w2"
	if differs {
		t.Errorf("of another node: known %v, record %q: %s", known, record, got.Message)
	}
}

// TestGivenUp: a node that the others consider dead leaves its addresses to them, even if all are held down, unless no
// other node may announce.
func TestGivenUp(t *testing.T) {
	for others, want := range map[bool]string{true: "w2", false: "w1"} {
		s := base()
		s.HeldDown = map[string]bool{"w1": true, "w2": true, "w3": true}
		if !others {
			s.Members = map[string]bool{"w1": true}
		}
		if owner := ForNode("w1", s).Owners.Of(v4); owner != "w1" {
			t.Fatalf("among others %t: %s owns the address, all being held down", others, owner)
		}
		s.Here.GivenUp = true
		if owner := ForNode("w1", s).Owners.Of(v4); owner != want {
			t.Errorf("among others %t: %s owns the address, want %s", others, owner, want)
		}
	}
}
