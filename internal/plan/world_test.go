package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

var (
	v4 = netip.MustParseAddr("192.0.2.10")
	v6 = netip.MustParseAddr("2001:db8::10")
	// start is Now.
	start = time.Unix(1e9, 0)
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// labelled selects what has one of these values of a label.
func labelled(key string, values ...string) []lb.Selector {
	return []lb.Selector{{{Key: key, Operator: lb.In, Values: values}}}
}

// base has three nodes on one LAN, one dual-stack pool, one Service that was announced, and both kinds of
// advertisement. By the hash alone w1 owns both addresses, and w2 without it.
func base() lb.State {
	s := lb.State{
		Now: start, Nodes: map[string]lb.Node{}, Members: map[string]bool{}, Links: map[string][]lb.Link{},
		Left:     map[string]bool{},
		Stopping: map[string]bool{}, HeldDown: map[string]bool{}, SpeakerDown: map[string]bool{},
		Unfit: map[string]lb.Unfit{},
		Pools: []lb.Pool{{Name: "lan", Ranges: []lb.Range{
			{From: netip.MustParseAddr("192.0.2.0"), To: netip.MustParseAddr("192.0.2.255")},
			{From: netip.MustParseAddr("2001:db8::"), To: netip.MustParseAddr("2001:db8::ffff")},
		}}},
		Services: []*lb.Service{{
			Key: lb.Key{Namespace: "default", Name: "web"}, Labels: map[string]string{"app": "web"},
			Addresses: []netip.Addr{v4, v6},
			Backends:  servedOn("w2"), AnnouncedBy: lb.ByNode{{Address: v4, Node: "w1"}, {Address: v6, Node: "w1"}},
			Ports:      []lb.Port{{Protocol: "TCP", Port: 80}},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd00:96::7")},
		}},
		L2Advertisements:  []lb.L2Advertisement{{Name: "l2"}},
		BGPAdvertisements: []lb.BGPAdvertisement{{Name: "bgp", AggregationLength: 32, AggregationLengthV6: 128}},
		Peers: []lb.Peer{
			{Name: "r1v4", Address: netip.MustParseAddr("10.0.0.100")},
			{Name: "r1v6", Address: netip.MustParseAddr("fd00::100")},
		},
	}
	for i, address := range []string{"10.0.0.1", "10.0.0.2", "fd00::3"} {
		name := fmt.Sprint("w", i+1)
		zone := []string{"a", "a", "b"}[i]
		s.Nodes[name] = lb.Node{
			Name: name, Labels: map[string]string{"zone": zone, "name": name},
			Addresses: []netip.Addr{netip.MustParseAddr(address)},
		}
		s.Members[name] = true
		s.Links[name] = links(name, "eth0=lan")
		s.Links[name][0].Addresses = []netip.Addr{hostAddress(i+1, v4), hostAddress(i+1, v6)}
	}
	return s
}

// hostAddress returns the address of a node on the LAN, of the family of a.
func hostAddress(i int, a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.MustParseAddr(fmt.Sprint("192.0.2.", i))
	}
	return netip.MustParseAddr(fmt.Sprint("fe80::", i))
}

// links reads links of a node, like eth0=lan: lan, lan4 and lan6 are subnets of the Service, "!" before a name is a
// refused socket and "~" silence. A veth announces only what names it.
func links(node string, texts ...string) (out []lb.Link) {
	for i, text := range texts {
		name, subnet, _ := strings.Cut(text, "=")
		l := lb.Link{Refused: name[0] == '!', Silent: name[0] == '~', MAC: lb.MAC{2, 0, 0, 0, node[1], byte(i)}}
		l.Name = strings.TrimLeft(name, "!~")
		l.Default = !strings.HasPrefix(l.Name, "veth")
		switch subnet {
		case "":
		case "lan":
			l.Prefixes = prefixes("192.0.2.0/24", "2001:db8::/64")
		case "lan4":
			l.Prefixes = prefixes("192.0.2.0/24")
		case "lan6":
			l.Prefixes = prefixes("2001:db8::/64")
		default:
			l.Prefixes = prefixes(strings.Split(subnet, ",")...)
		}
		out = append(out, l)
	}
	return out
}

// servedOn returns Backends of all ports in both families on these nodes.
func servedOn(nodes ...string) lb.Backend {
	return lb.Backend{Families: lb.FamilySetOf(lb.IPv4, lb.IPv6), Nodes: lb.Names{}.With(nodes...)}
}

// backends reads Backends like 46/80,443=w1,w2!: families, TCP ports ("all" of them), and nodes, with "!" if the
// endpoints there terminate.
func backends(texts ...string) lb.Backend {
	var chain *lb.Backend
	for _, text := range slices.Backward(texts) {
		where, names, _ := strings.Cut(text, "=")
		families, ports, _ := strings.Cut(where, "/")
		b := lb.Backend{Next: chain}
		if strings.Contains(families, "4") {
			b.Families |= lb.FamilySetOf(lb.IPv4)
		}
		if strings.Contains(families, "6") {
			b.Families |= lb.FamilySetOf(lb.IPv6)
		}
		if ports != "all" {
			b.Ports = portsOf(ports)
		}
		for name := range strings.SplitSeq(names, ",") {
			name, terminates := strings.CutSuffix(name, "!")
			b.Nodes = b.Nodes.With(name)
			if terminates {
				b.Terminating = b.Terminating.With(name)
			}
		}
		chain = &b
	}
	return *chain
}

// portsOf reads the numbers of TCP ports, in order.
func portsOf(text string) (ports []lb.Port) {
	for number := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			panic(err)
		}
		ports = append(ports, lb.Port{Protocol: "TCP", Port: uint16(n)})
	}
	return ports
}

// twin adds a Service with the addresses of the first one.
func twin(s *lb.State, name string) *lb.Service {
	other := *s.Services[0]
	other.Key.Name = name
	s.Services = append(s.Services, &other)
	return &other
}

func set(names []string) map[string]bool {
	out := map[string]bool{}
	for _, name := range names {
		out[name] = true
	}
	return out
}

func ownedBy(name string) *lb.Previous {
	return &lb.Previous{Owners: lb.MapOf(map[netip.Addr]string{v4: name, v6: name})}
}

// nodeOrders change each of the nodes that they name, which w1 then knows of them.
var nodeOrders = map[string]func(s *lb.State, name string, n *lb.Node){
	"drain":    func(_ *lb.State, _ string, n *lb.Node) { n.Draining = true },
	"exclude":  func(_ *lb.State, _ string, n *lb.Node) { n.Excluded = true },
	"nonet":    func(_ *lb.State, _ string, n *lb.Node) { n.NetworkUnavailable = true },
	"shutdown": func(_ *lb.State, _ string, n *lb.Node) { n.ShuttingDown, n.Draining = true, true },
	"dead":     func(s *lb.State, name string, _ *lb.Node) { delete(s.Members, name) },
	"left": func(s *lb.State, name string, _ *lb.Node) {
		delete(s.Members, name)
		s.Left[name], s.Stopping[name] = true, true
	},
	"forget":      func(s *lb.State, name string, _ *lb.Node) { delete(s.Left, name) },
	"stop":        func(s *lb.State, name string, _ *lb.Node) { s.Stopping[name] = true },
	"held":        func(s *lb.State, name string, _ *lb.Node) { s.HeldDown[name] = true },
	"down":        func(s *lb.State, name string, _ *lb.Node) { s.SpeakerDown[name] = true },
	"boot":        func(s *lb.State, name string, _ *lb.Node) { s.Unfit[name] |= lb.Booting },
	"podless":     func(s *lb.State, name string, _ *lb.Node) { s.Unfit[name] |= lb.PodsUnreached },
	"rulesgone":   func(s *lb.State, name string, _ *lb.Node) { s.Unfit[name] |= lb.RulesGone },
	"unfiltered":  func(s *lb.State, name string, _ *lb.Node) { s.Unfit[name] |= lb.Unfiltered },
	"sessionless": func(s *lb.State, name string, _ *lb.Node) { s.Unfit[name] |= lb.SessionlessIPv4 | lb.SessionlessIPv6 },
	"no4session":  func(s *lb.State, name string, _ *lb.Node) { s.Unfit[name] |= lb.SessionlessIPv4 },
	"no6session":  func(s *lb.State, name string, _ *lb.Node) { s.Unfit[name] |= lb.SessionlessIPv6 },
	"unknown":     func(s *lb.State, name string, _ *lb.Node) { delete(s.Links, name) },
	"nopeer": func(s *lb.State, name string, _ *lb.Node) {
		for i := range s.Peers {
			s.Peers[i].Unusable = maps.Clone(s.Peers[i].Unusable)
			if s.Peers[i].Unusable == nil {
				s.Peers[i].Unusable = map[string]lb.Reason{}
			}
			s.Peers[i].Unusable[name] = lb.PeerIsSelf
		}
	},
}

// orders change a State, its first Service web, or what w1 knows (Here).
var orders = map[string]func(s *lb.State, args []string){
	"gone":    func(s *lb.State, args []string) { delete(s.Nodes, args[0]) },
	"links":   func(s *lb.State, args []string) { s.Links[args[0]] = links(args[0], args[1:]...) },
	"l2links": func(s *lb.State, args []string) { s.L2Advertisements[0].Links = args },
	"l2nodes": func(s *lb.State, args []string) { s.L2Advertisements[0].NodeSelectors = labelled("name", args...) },
	"nol2":    func(s *lb.State, _ []string) { s.L2Advertisements = nil },
	"nobgp":   func(s *lb.State, _ []string) { s.BGPAdvertisements = nil },
	"aggregate": func(s *lb.State, _ []string) {
		s.BGPAdvertisements[0].AggregationLength, s.BGPAdvertisements[0].AggregationLengthV6 = 28, 124
	},
	"v4only":    func(s *lb.State, _ []string) { s.Services[0].Addresses = []netip.Addr{v4} },
	"noaddress": func(s *lb.State, _ []string) { s.Services[0].Addresses = nil },
	"idle":      func(s *lb.State, _ []string) { s.Services[0].Backends = lb.Backend{} },
	"anywhere":  func(s *lb.State, _ []string) { s.Services[0].Backends.Anywhere = true },
	"served":    func(s *lb.State, args []string) { s.Services[0].Backends = servedOn(args...) },
	"local": func(s *lb.State, args []string) {
		s.Services[0].Local, s.Services[0].Backends = true, servedOn(args...)
	},
	"ports": func(s *lb.State, args []string) {
		s.Services[0].Ports = portsOf(strings.Join(args, ","))
	},
	"backends": func(s *lb.State, args []string) { s.Services[0].Backends = backends(args...) },
	"labelled": func(s *lb.State, _ []string) {
		s.Services[0].Backends, s.Services[0].IgnoredByKubeProxy = lb.Backend{}, true
	},
	"nodes":    func(s *lb.State, args []string) { s.Services[0].NodeSelectors = labelled("name", args...) },
	"norecord": func(s *lb.State, _ []string) { s.Services[0].AnnouncedBy = nil },
	"record": func(s *lb.State, args []string) {
		s.Services[0].AnnouncedBy = lb.ByNode{{Address: v4, Node: args[0]}, {Address: v6, Node: args[0]}}
	},
	"ranged": func(s *lb.State, _ []string) {
		s.Services[0].Access = lb.Access{Restricted: true, Allow: prefixes("192.0.2.0/24")}
	},
	"deleted":   func(s *lb.State, _ []string) { s.Services = nil },
	"twin":      func(s *lb.State, args []string) { twin(s, "twin").Backends = servedOn(args...) },
	"neighbour": func(s *lb.State, _ []string) { neighbour(s) },
	"closed":    func(s *lb.State, _ []string) { s.Here.Unfiltered = true },
	"otherpath": func(s *lb.State, _ []string) { s.OtherDataPath = true },
	"refused":   func(s *lb.State, _ []string) { s.Here.Refused = lb.SetOf(s.Services[0].Key) },
	"onlink":    func(s *lb.State, _ []string) { s.Here.Addresses = []netip.Addr{v4} },
	"unserved":  func(s *lb.State, _ []string) { s.Here.Unserved = map[lb.Key]bool{s.Services[0].Key: true} },
	"deaf":      func(s *lb.State, _ []string) { s.Here.HearsBadly = true },
	"path":      func(s *lb.State, _ []string) { s.Here.PathFails = true },
	"givenup":   func(s *lb.State, _ []string) { s.Here.GivenUp = true },
	"newer":     func(s *lb.State, args []string) { s.Here.Newer = map[netip.Addr]string{v4: args[0]} },
	"cut":       func(s *lb.State, args []string) { s.Here.CutOffFrom = set(args) },
	"doubt": func(s *lb.State, args []string) {
		s.Here.CutOffFrom = map[string]bool{}
		for _, n := range args {
			s.Here.CutOffFrom[n] = false
		}
	},
	"had": func(s *lb.State, _ []string) {
		s.Here.Announced = lb.MapOf(map[netip.Addr]*lb.Announcement{v4: {}, v6: {}})
	},
	"divided":  func(s *lb.State, _ []string) { s.Here.Partition.Divided = true },
	"yieldsto": func(s *lb.State, args []string) { s.Here.Partition = lb.Partition{YieldsTo: args, Divided: true} },
	"apart":    func(s *lb.State, _ []string) { s.Here.Partition.Apart = true },
	"previous": func(s *lb.State, args []string) { s.Here.Previous = ownedBy(strings.Join(args, "")) },
	"relayed": func(s *lb.State, args []string) {
		s.Here.Previous = ownedBy("w1")
		s.Here.Previous.Relays = relaysTo(args[0])
	},
	"inherits":   func(s *lb.State, args []string) { s.Here.Inherited = inherited(args[0]) },
	"advertised": func(s *lb.State, _ []string) { s.Here.Advertised = s.Here.Advertised.Put(v4, time.Time{}) },
	"since": func(s *lb.State, args []string) {
		ago, _ := time.ParseDuration(args[0])
		s.Here.Advertised = s.Here.Advertised.Put(v4, s.Now.Add(leaveTime-ago))
	},
}

func relaysTo(name string) lb.Map[netip.Addr, lb.Relay] {
	return lb.MapOf(map[netip.Addr]lb.Relay{v4: {Address: v4, Former: name}, v6: {Address: v6, Former: name}})
}

func inherited(name string) map[netip.Addr]netip.Addr {
	i := int(name[1] - '0')
	return map[netip.Addr]netip.Addr{v4: hostAddress(i, v4), v6: hostAddress(i, v6)}
}

// neighbour adds a Service with source ranges on the addresses after the addresses of the first one.
func neighbour(s *lb.State) {
	n := twin(s, "neighbour")
	n.Addresses, n.Access = []netip.Addr{v4.Next(), v6.Next()}, lb.Access{Restricted: true, Allow: prefixes("10.0.0.0/8")}
}

// world returns base after orders, which semicolons separate.
func world(t *testing.T, text string) lb.State {
	t.Helper()
	s := base()
	do(t, &s, text)
	return s
}

func do(t *testing.T, s *lb.State, text string) {
	t.Helper()
	for one := range strings.SplitSeq(text, ";") {
		words := strings.Fields(one)
		switch {
		case len(words) == 0:
		case orders[words[0]] != nil:
			orders[words[0]](s, words[1:])
		case nodeOrders[words[0]] != nil:
			for _, name := range words[1:] {
				n := s.Nodes[name]
				nodeOrders[words[0]](s, name, &n)
				if n.Name != "" {
					s.Nodes[name] = n
				}
			}
		default:
			t.Fatalf("no order %q", one)
		}
	}
}

// planOf returns the plan of a node. What is known Here is known to w1.
func planOf(s lb.State, name string) Plan {
	if name != "w1" {
		s.Here = lb.Here{}
	}
	return ForNode(name, s)
}

// nodesWhere joins the names of the nodes whose plans are such; "-" for none.
func nodesWhere(s lb.State, such func(name string, p Plan) bool) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(s.Members)) {
		if such(name, planOf(s, name)) {
			out = append(out, name)
		}
	}
	return orNone(out)
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, " ")
}

// owners returns the nodes that announce an address as their own.
func owners(s lb.State, a netip.Addr) string {
	return nodesWhere(s, func(_ string, p Plan) bool {
		one := p.Announcements.Of(a)
		return one != nil && one.MAC == lb.MAC{}
	})
}

// facts are what a table may want to know of the plans of all nodes, or of the plan of w1.
var facts = map[string]func(s lb.State, p Plan) string{
	"own": func(s lb.State, _ Plan) string { return owners(s, v4) + ", " + owners(s, v6) },
	"route": func(s lb.State, _ Plan) string {
		return nodesWhere(s, func(_ string, p Plan) bool {
			return slices.ContainsFunc(allRoutes(p), func(r lb.Route) bool { return r.Prefix.Contains(v4) })
		})
	},
	"stands": func(s lb.State, _ Plan) string {
		owner := ""
		names := nodesWhere(s, func(_ string, p Plan) bool {
			one := p.Announcements.Of(v4)
			if one == nil || one.MAC == (lb.MAC{}) {
				return false
			}
			owner = p.Owners.Of(v4)
			return slices.ContainsFunc(s.Links[owner], func(l lb.Link) bool {
				return l.MAC == one.MAC && len(l.Prefixes) > 0 && !one.Probe
			})
		})
		return strings.TrimSuffix(names+" for "+owner, " for ")
	},
	"on": func(s lb.State, _ Plan) string {
		var out []string
		for _, name := range slices.Sorted(maps.Keys(s.Members)) {
			if one := planOf(s, name).Announcements.Of(v4); one != nil && one.MAC != (lb.MAC{}) {
				out = append(out, name+" "+strings.Join(one.Links, " "))
			}
		}
		return orNone(out)
	},
	"writers": func(s lb.State, _ Plan) string {
		l2 := nodesWhere(s, func(_ string, p Plan) bool { return first(p).L2.Writer })
		return l2 + ", " + nodesWhere(s, func(_ string, p Plan) bool { return first(p).BGP.Writer })
	},
	"w1": func(_ lb.State, p Plan) string {
		return fmt.Sprintf("announces %d, yields %d, routes %d", p.Announcements.Len(), p.Yield.Len(), p.Routes.Len())
	},
	"l2": func(_ lb.State, p Plan) string {
		return fmt.Sprintf("%s %s", first(p).L2.Reason, orNone(first(p).L2.Nodes))
	},
	"bgp": func(_ lb.State, p Plan) string {
		return fmt.Sprintf("%s %s", first(p).BGP.Reason, orNone(first(p).BGP.Nodes))
	},
	"here": func(_ lb.State, p Plan) string {
		return fmt.Sprintf("%s %s", first(p).L2.Here, first(p).BGP.Here)
	},
	"peers":   func(_ lb.State, p Plan) string { return orNone(first(p).BGP.Peers) },
	"bgpsays": func(_ lb.State, p Plan) string { return first(p).BGP.Message },
	"says":    func(_ lb.State, p Plan) string { return says(p) },
	"owner":   func(_ lb.State, p Plan) string { return p.Owners.Of(v4) },
	"relays":  func(_ lb.State, p Plan) string { return relaysOf(p) },
	"left":    func(s lb.State, p Plan) string { return left(p, s) },
	"routes":  func(_ lb.State, p Plan) string { return routesOf(p) },
	"announces": func(_ lb.State, p Plan) string {
		var out []string
		for _, a := range p.Announcements.All() {
			out = append(out, fmt.Sprint(a.Address, a.Links))
		}
		return orNone(out)
	},
	"probes": func(_ lb.State, p Plan) string {
		var out []string
		for _, a := range p.Announcements.All() {
			if a.Probe {
				out = append(out, a.Address.String())
			}
		}
		return orNone(out)
	},
}

// first returns the verdict on the Service of a world.
func first(p Plan) *Verdict { return p.Verdicts.Of(lb.Key{Namespace: "default", Name: "web"}) }

// says is what the plan has to remark on layer 2.
func says(p Plan) string {
	out := first(p).L2.Message
	for _, a := range first(p).L2.Announcers {
		out += a.Remark
	}
	return out
}

// relaysOf returns the relays of a plan as text.
func relaysOf(p Plan) string {
	var out []string
	for _, r := range p.Relays.All() {
		via := "no way"
		if r.Via.IsValid() {
			via = fmt.Sprint(r.Via, " ", r.Link)
		}
		out = append(out, fmt.Sprintf("%s at %s", r.Former, via))
	}
	return strings.Join(slices.Compact(out), ", ")
}

func allRoutes(p Plan) (out []lb.Route) {
	for _, list := range p.Routes.All() {
		out = append(out, *list...)
	}
	return out
}

func routesOf(p Plan) string {
	var out []string
	for _, r := range allRoutes(p) {
		text := fmt.Sprint(r.Prefix, r.Peers)
		if r.LocalPref > 0 || r.Prepend > 0 || r.MED.Sent {
			med := "none"
			if r.MED.Sent {
				med = fmt.Sprint(r.MED.Value)
			}
			text += fmt.Sprintf(" localpref %d prepend %d med %s", r.LocalPref, r.Prepend, med)
		}
		if len(r.Communities) > 0 {
			text += fmt.Sprint(" ", r.Communities)
		}
		if r.Leaving {
			text += " leaving"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// left says what a node does with v4: the time from now to its withdrawal if it leaves the address.
func left(p Plan, s lb.State) string {
	all := allRoutes(p)
	i := slices.IndexFunc(all, func(r lb.Route) bool { return r.Prefix.Contains(v4) })
	until, advertised := p.Advertised.Get(v4)
	switch {
	case advertised != (i >= 0), i >= 0 && (all[i].Leaving != !until.IsZero() || p.Withdraws != until):
		return "the plan contradicts itself"
	case i < 0:
		return "at once"
	case all[i].Leaving:
		return until.Sub(s.Now).String()
	}
	return "stays"
}

// check compares the plans for a State with what is wanted of them: facts, which semicolons separate; parts of
// sentences suffice. Where owners are wanted, none may have a remark that is not.
func check(t *testing.T, name string, s lb.State, want string) {
	t.Helper()
	p := ForNode("w1", s)
	for one := range strings.SplitSeq(want, ";") {
		fact, value, _ := strings.Cut(strings.TrimSpace(one), " ")
		if facts[fact] == nil {
			t.Fatalf("%s: no fact %q", name, fact)
		}
		got := facts[fact](s, p)
		if strings.HasSuffix(fact, "says") && value != "" && strings.Contains(got, value) {
			continue
		}
		if got != value {
			t.Errorf("%s: %s is %q, want %q", name, fact, got, value)
		}
	}
	if strings.HasPrefix(want, "own") && !strings.Contains(want, "says") && says(p) != "" {
		t.Errorf("%s: layer 2: %q", name, says(p))
	}
	for key := range p.Verdicts.All() {
		for _, protocol := range []string{"layer 2", "BGP"} {
			writer := func(_ string, p Plan) bool {
				return protocol == "BGP" && p.Verdicts.Of(key).BGP.Writer || protocol != "BGP" && p.Verdicts.Of(key).L2.Writer
			}
			if who := nodesWhere(s, writer); s.Here.CutOffFrom == nil && (who == "-" || strings.Contains(who, " ")) {
				t.Errorf("%s: the writers of the condition of %s are %q", name, protocol, who)
			}
		}
	}
	if boots := nodesWhere(s, func(n string, p Plan) bool {
		one := p.Announcements.Of(v4)
		return s.Unfit[n].Has(lb.Booting) && (p.Routes.Len() > 0 || one != nil && one.MAC == lb.MAC{})
	}); boots != "-" {
		t.Errorf("%s: %s boots and attracts traffic", name, boots)
	}
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// beside gives all nodes another link before the one on the LAN, w1 and w2 with these addresses.
func beside(s *lb.State, link, ofW1, ofW2 string) {
	for name, texts := range map[string]string{"w1": ofW1, "w2": ofW2, "w3": ""} {
		l := links(name, link)[0]
		l.Addresses = addrs(strings.Fields(texts)...)
		s.Links[name] = append([]lb.Link{l}, s.Links[name]...)
	}
}

// localNeighbour adds a Service with policy Local on the next address, advertised from these nodes.
func localNeighbour(nodes ...string) func(*lb.State) {
	return func(s *lb.State) {
		n := twin(s, "neighbour")
		n.Addresses, n.Local, n.Backends = []netip.Addr{v4.Next()}, true, servedOn(nodes...)
		s.Here.Advertised = s.Here.Advertised.Put(v4.Next(), time.Time{})
	}
}

// aggregates has two advertisements make one route, the older one for the second Service.
func aggregates(s *lb.State) {
	twin(s, "second").Addresses = []netip.Addr{v4.Next(), v6.Next()}
	s.Services[1].Labels = map[string]string{"app": "second"}
	young := s.BGPAdvertisements[0]
	s.BGPAdvertisements[0].ServiceSelectors, s.BGPAdvertisements[0].LocalPref = labelled("app", "second"), 10
	young.ServiceSelectors, young.LocalPref = labelled("app", "web"), 20
	s.BGPAdvertisements = append(s.BGPAdvertisements, young)
}
