package config

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// meta returns the metadata of an object created in the given second.
func meta(name string, second int64) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(second, 0)}
}

func poolObject(name string, second int64, addresses ...string) *v1beta1.IPAddressPool {
	return &v1beta1.IPAddressPool{ObjectMeta: meta(name, second), Spec: v1beta1.IPAddressPoolSpec{Addresses: addresses}}
}

// deleted marks an object as being deleted.
func deleted(o *v1beta1.IPAddressPool) *v1beta1.IPAddressPool {
	o.DeletionTimestamp = new(metav1.Unix(99, 0))
	return o
}

func labelled(labels map[string]string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: labels}
}

// badSelector is invalid, although the API server's schema accepts it.
func badSelector() metav1.LabelSelector {
	return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: "Near"}}}
}

// problemTexts writes Problems for a human reader, with notes marked.
func problemTexts(problems []lb.Problem) []string {
	var out []string
	for _, p := range problems {
		mark := ""
		if p.Note {
			mark = "note "
		}
		out = append(out, fmt.Sprintf("%s%s %s: %s", mark, p.Object, p.Reason, p.Message))
	}
	return out
}

// addrs lets cmp compare addresses and prefixes.
func addrs() cmp.Option {
	var o Objects
	var here lb.Here
	return cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
		cmp.AllowUnexported(here.Advertised, here.Announced, here.Refused, o.ServicesByKey, o.SlicesByKey, o.NodesByKey)}
}

func rangesOf(s lb.State) map[string]string {
	out := map[string]string{}
	for _, p := range s.Pools {
		out[p.Name] = fmt.Sprint(p.Ranges)
	}
	return out
}

func TestPoolAddresses(t *testing.T) {
	for _, tt := range []struct {
		name     string
		pools    []*v1beta1.IPAddressPool
		want     map[string]string
		problems []string
	}{
		{
			"every form, both families",
			[]*v1beta1.IPAddressPool{
				poolObject("p", 1, "192.0.2.0/30", "198.51.100.1 - 198.51.100.3", "203.0.113.9", "2001:db8::/126"),
			},
			map[string]string{"p": "[192.0.2.0-192.0.2.3 198.51.100.1-198.51.100.3 203.0.113.9 2001:db8::-2001:db8::3]"},
			nil,
		},
		{
			"a bad entry leaves the others",
			[]*v1beta1.IPAddressPool{poolObject("p", 1, "garbage", "192.0.2.1", "192.0.2.9-192.0.2.7")},
			map[string]string{"p": "[192.0.2.1]"}, []string{
				`IPAddressPool p InvalidAddresses: spec.addresses[0]: "garbage" is not an IPv4 or IPv6 address`,
				`IPAddressPool p InvalidAddresses: spec.addresses[2]: "192.0.2.9-192.0.2.7" is reversed: write 192.0.2.7-192.0.2.9`,
			},
		},
		{"no good entry is still a pool", []*v1beta1.IPAddressPool{poolObject("p", 1, "::/0")},
			map[string]string{"p": "[]"},
			[]string{
				`IPAddressPool p InvalidAddresses: spec.addresses[0]: "::/0" is every address there is: write the prefix that is yours to give`,
			}},
		{"host bits are reported and do no harm", []*v1beta1.IPAddressPool{poolObject("p", 1, "192.0.2.5/30")},
			map[string]string{"p": "[192.0.2.4-192.0.2.7]"},
			[]string{
				`note IPAddressPool p HostBitsIgnored: spec.addresses[0]: "192.0.2.5/30" has host bits set and is read as 192.0.2.4/30: write that`,
			}},
		{
			"overlap within a pool",
			[]*v1beta1.IPAddressPool{poolObject("p", 1, "192.0.2.0/30", "192.0.2.2-192.0.2.6", "192.0.2.5")},
			map[string]string{"p": "[192.0.2.0-192.0.2.3 192.0.2.4-192.0.2.6]"},
			[]string{
				`note IPAddressPool p OverlappingAddresses: spec.addresses holds 192.0.2.2-192.0.2.3, 192.0.2.5 more than once: once is enough`,
			},
		},
		{
			"overlap of two: the older keeps",
			[]*v1beta1.IPAddressPool{poolObject("a", 2, "192.0.2.0/28"), poolObject("b", 1, "192.0.2.4-192.0.2.5", "192.0.2.8")},
			map[string]string{
				"a": "[192.0.2.0-192.0.2.3 192.0.2.6-192.0.2.7 192.0.2.9-192.0.2.15]",
				"b": "[192.0.2.4-192.0.2.5 192.0.2.8]",
			},
			[]string{
				`IPAddressPool a OverlappingAddresses: IPAddressPool "b" is older and keeps 192.0.2.4-192.0.2.5, 192.0.2.8`,
			},
		},
		{"of one second: by name", []*v1beta1.IPAddressPool{poolObject("b", 1, "192.0.2.1"), poolObject("a", 1, "192.0.2.1")},
			map[string]string{"a": "[192.0.2.1]", "b": "[]"},
			[]string{`IPAddressPool b OverlappingAddresses: IPAddressPool "a" is older and keeps 192.0.2.1`}},
		{
			"with several",
			[]*v1beta1.IPAddressPool{
				poolObject("a", 1, "2001:db8::1"), poolObject("b", 2, "2001:db8::3"),
				poolObject("c", 3, "2001:db8::-2001:db8::4"),
			},
			map[string]string{"a": "[2001:db8::1]", "b": "[2001:db8::3]", "c": "[2001:db8:: 2001:db8::2 2001:db8::4]"},
			[]string{
				`IPAddressPool c OverlappingAddresses: IPAddressPool "a" is older and keeps 2001:db8::1`,
				`IPAddressPool c OverlappingAddresses: IPAddressPool "b" is older and keeps 2001:db8::3`,
			},
		},
		{"an active pool takes over from a pool that is being deleted",
			[]*v1beta1.IPAddressPool{
				deleted(poolObject("old", 1, "192.0.2.0/29", "2001:db8::/126")),
				poolObject("new", 2, "192.0.2.2-192.0.2.3", "2001:db8::/126"),
			},
			map[string]string{
				"old": "[192.0.2.0-192.0.2.1 192.0.2.4-192.0.2.7]",
				"new": "[192.0.2.2-192.0.2.3 2001:db8::-2001:db8::3]",
			},
			[]string{
				`note IPAddressPool old OverlappingAddresses: IPAddressPool "new" takes over 192.0.2.2-192.0.2.3, 2001:db8::-2001:db8::3`,
			}},
		{"of two that are being deleted the older keeps",
			[]*v1beta1.IPAddressPool{deleted(poolObject("a", 2, "192.0.2.1")), deleted(poolObject("b", 1, "192.0.2.1"))},
			map[string]string{"a": "[]", "b": "[192.0.2.1]"},
			[]string{`IPAddressPool a OverlappingAddresses: IPAddressPool "b" is older and keeps 192.0.2.1`}},
	} {
		s, problems := Compile(Objects{Pools: tt.pools}, Options{})
		same(t, tt.name, tt.want, rangesOf(s))
		same(t, tt.name+": problems", tt.problems, problemTexts(problems))
	}
}

func TestPoolSpec(t *testing.T) {
	off := false
	deletedAt := metav1.Unix(9, 0)
	o := poolObject("p", 1, "192.0.2.1")
	o.Labels = map[string]string{"net": "lan"}
	o.DeletionTimestamp = &deletedAt
	o.Spec.AutoAssign, o.Spec.AvoidBuggyIPs = &off, true
	o.Spec.ServiceAllocation = &v1beta1.ServiceAllocation{
		Priority:           7,
		NamespaceSelectors: []metav1.LabelSelector{badSelector(), labelled(map[string]string{"team": "red", "env": "prod"})},
		ServiceSelectors:   []metav1.LabelSelector{badSelector()},
	}
	s, problems := Compile(Objects{Pools: []*v1beta1.IPAddressPool{o}}, Options{})
	never := lb.Selector{{Operator: lb.In}}
	want := []lb.Pool{{
		Name: "p", Labels: o.Labels, Ranges: s.Pools[0].Ranges, AvoidBuggyIPs: true, Deleting: true,
		Guarded: s.Pools[0].Ranges, Unguarded: s.Pools[0].Ranges,
		Allocation: &lb.Allocation{
			Priority:    7,
			ByNamespace: true,
			NamespaceSelectors: []lb.Selector{never, {
				{Key: "env", Operator: lb.In, Values: []string{"prod"}},
				{Key: "team", Operator: lb.In, Values: []string{"red"}},
			}},
			ServiceSelectors: []lb.Selector{never},
		},
	}}
	same(t, "pools", want, s.Pools, addrs())
	wantProblems := []string{
		`IPAddressPool p InvalidSelector: spec.serviceAllocation.namespaceSelectors[0] matches nothing: "Near" is not a valid label selector operator`,
		`IPAddressPool p InvalidSelector: spec.serviceAllocation.serviceSelectors[0] matches nothing: "Near" is not a valid label selector operator`,
	}
	same(t, "problems", wantProblems, problemTexts(problems))
	for _, labels := range []map[string]string{nil, {}, {"": ""}, {"zone": "a"}} {
		if never.Matches(labels) {
			t.Errorf("an unreadable selector matches %v", labels)
		}
	}
}

func TestUnusableAddresses(t *testing.T) {
	for _, tt := range []struct {
		name      string
		addresses []string
		want      string
		problems  []string
	}{
		{"a node's own", []string{"172.30.0.10-172.30.0.13"}, "[172.30.0.10-172.30.0.13] but 172.30.0.11 172.30.0.12",
			[]string{
				`note IPAddressPool p AddressNotUsable: spec.addresses holds what belongs to the cluster, which no Service gets: ` +
					`172.30.0.11 (node "n1"), 172.30.0.12 (node "n2"): take that out`,
			}},
		{"of both families", []string{"fd00:30::10/127"}, "[fd00:30::10-fd00:30::11] but fd00:30::11",
			[]string{
				`note IPAddressPool p AddressNotUsable: spec.addresses holds what belongs to the cluster, which no Service gets: ` +
					`fd00:30::11 (node "n1"): take that out`,
			}},
		{"nothing else left", []string{"172.30.0.11"}, "[172.30.0.11] but 172.30.0.11",
			[]string{
				`note IPAddressPool p AddressNotUsable: spec.addresses holds what belongs to the cluster, which no Service gets: ` +
					`172.30.0.11 (node "n1"): take that out`,
			}},
		{"network and broadcast are given, as MetalLB does", []string{"192.0.2.0/30"}, "[192.0.2.0-192.0.2.3]", nil},
		{"never a host's", []string{"126.255.255.255-128.0.0.0", "169.254.0.0/15", "fe80::1", "223.255.255.255-224.0.0.3"},
			"[126.255.255.255 128.0.0.0 169.255.0.0-169.255.255.255 223.255.255.255]",
			[]string{
				`IPAddressPool p AddressNotUsable: spec.addresses holds addresses that no Service can have: 127.0.0.0-127.255.255.255 (loopback), ` +
					`169.254.0.0-169.254.255.255 (link-local), 224.0.0.0-224.0.0.3 (multicast), fe80::1 (link-local)`,
			}},
		{
			"at both ends of the families",
			[]string{"0.0.0.0-0.0.0.1", "255.255.255.254-255.255.255.255", "::-::2", "ff00::/8"},
			"[0.0.0.1 255.255.255.254 ::2]",
			[]string{
				`IPAddressPool p AddressNotUsable: spec.addresses holds addresses that no Service can have: 0.0.0.0 (unspecified), 255.255.255.255 (broadcast), ` +
					`:: (unspecified), ::1 (loopback), ff00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff (multicast)`,
			},
		},
	} {
		o := Objects{
			Pools: []*v1beta1.IPAddressPool{poolObject("p", 1, tt.addresses...)},
			// Two nodes with the same address, and one with a link-local address, are handled.
			Nodes: []*corev1.Node{
				nodeObject("n1", "a", "172.30.0.11", "fd00:30::11", "fe80::11"),
				nodeObject("n2", "a", "172.30.0.12", "172.30.0.11"), nodeObject("n3", "a"),
			},
		}
		s, problems := Compile(o, Options{})
		got := rangesOf(s)["p"]
		for i, part := range s.Pools[0].Withheld {
			if i == 0 {
				got += " but"
			}
			got += " " + part.Range.String()
		}
		same(t, tt.name, tt.want, got)
		same(t, tt.name+": problems", tt.problems, problemTexts(problems))
	}
}

// TestNodeAddressOfYounger: an address of a Node is withheld from the pool that owns it; the younger pool has lost it
// already.
func TestNodeAddressOfYounger(t *testing.T) {
	s, problems := Compile(Objects{
		Pools: []*v1beta1.IPAddressPool{poolObject("old", 1, "172.30.0.8/30"), poolObject("young", 2, "172.30.0.8/29")},
		Nodes: []*corev1.Node{nodeObject("n1", "a", "172.30.0.11", "172.30.0.13")},
	}, Options{})
	want := []string{
		`note IPAddressPool old AddressNotUsable: spec.addresses holds what belongs to the cluster, which no Service gets: ` +
			`172.30.0.11 (node "n1"): take that out`,
		`note IPAddressPool young AddressNotUsable: spec.addresses holds what belongs to the cluster, which no Service gets: ` +
			`172.30.0.13 (node "n1"): take that out`,
		`IPAddressPool young OverlappingAddresses: IPAddressPool "old" is older and keeps 172.30.0.8-172.30.0.11`,
	}
	same(t, "problems", want, problemTexts(problems))
	if len(s.Pools[0].Withheld) != 1 || len(s.Pools[1].Withheld) != 1 {
		t.Errorf("%v and %v are not kept from new Services", s.Pools[0].Withheld, s.Pools[1].Withheld)
	}
}

// TestManyNodeAddresses: a kubelet can neither block a whole pool nor make each plan long.
func TestManyNodeAddresses(t *testing.T) {
	n := nodeObject("n1", "a", "192.0.2.1")
	for i := range 20_000 {
		n.Status.Addresses = append(n.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: fmt.Sprintf("10.0.%d.%d", i/256, i%256)})
	}
	s, _ := Compile(Objects{
		Pools: []*v1beta1.IPAddressPool{poolObject("p", 1, "10.0.0.0/16")}, Nodes: []*corev1.Node{n},
	}, Options{})
	if got := s.Nodes["n1"].Addresses; len(got) != maxNodeAddresses || got[0] != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("%d addresses count, %v first", len(got), got[0])
	}
	if got := len(s.Pools[0].Withheld); got != maxNodeAddresses-1 {
		t.Errorf("%d addresses are kept from all Services", got)
	}
}

// The API server refuses a reversed range, and admits every range that parseRange reads, however its ends are written.
func TestPoolSchema(t *testing.T) {
	const reversed = "a range begins with its lowest address"
	for entry, want := range map[string]string{
		"192.0.2.20-192.0.2.10":              reversed,
		"192.0.3.0 - 192.0.2.255":            reversed,
		"192.0.2.10-192.0.2.9":               reversed,
		"100.0.2.1-99.0.2.1":                 reversed,
		"2001:DB8::F-2001:db8::e":            reversed,
		"2001:db8::10-2001:db8::f":           reversed,
		"2001:db8:1::-2001:db8::ffff":        reversed,
		"::1-::":                             reversed,
		"192.0.2.9-192.0.2.10":               "",
		"192.0.2.7-192.0.2.7":                "",
		"2001:db8::0009-2001:db8::10":        "",
		"2001:db8::1:5-2001:db8::2":          "", // the daemons report it
		"64:ff9b::1.2.3.10-64:ff9b::1.2.4.1": "",
		"64:ff9b::1.2.3.4-64:ff9b::102:305":  "",
		"2001:db8::1:0:0-2001:db8::1:0:0:0":  "",
		"2001:db8::-2001:db8:ffff:ffff::":    "",
		"0:0:0:0:0:0:0:9-0:0:0:0:0:0:0:a":    "",
		"1111:2222:3333:4444:5555:6666:7777:8889-1111:2222:3333:4444:5555:6666:7777:8888": reversed,
	} {
		checkSchema(t, KindPool, "addresses: ['"+entry+"']", want)
	}

	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		entry := anyText(random, anyAddr(random)) + "-" + anyText(random, anyAddr(random))
		_, _, err := parseRange(entry)
		if err == nil {
			checkSchema(t, KindPool, "addresses: ['"+entry+"']", "")
		}
	}
}

// anyAddr returns one of few addresses, so that two of them often have much in common.
func anyAddr(random *rand.Rand) netip.Addr {
	numbers := []uint16{0, 0, 0, 1, 9, 0x10, 0xa0, 0xff, 0x1000, 0xffff}
	if random.IntN(3) == 0 {
		return netip.AddrFrom4([4]byte{10, byte(random.IntN(2)), byte(random.IntN(12)), byte(random.IntN(256))})
	}
	var b [16]byte
	for i := range 8 {
		binary.BigEndian.PutUint16(b[2*i:], numbers[random.IntN(len(numbers))])
	}
	return netip.AddrFrom16(b)
}

// anyText returns one of the texts of an address.
func anyText(random *rand.Rand, a netip.Addr) string {
	text := a.String()
	switch random.IntN(5) {
	case 0:
		text = a.StringExpanded()
	case 1:
		text = strings.ToUpper(text)
	case 2:
		text = " " + text + " "
	case 3:
		if b := a.As16(); a.Is6() {
			text = strings.Join(strings.SplitAfter(a.StringExpanded(), ":")[:6], "") + netip.AddrFrom4([4]byte(b[12:])).String()
		}
	}
	return text
}
