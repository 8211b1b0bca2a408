package plan

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestCostGrowsInProportion checks that four times as large a group costs at most eight times as much: a tenant can
// chain all of its Services in one group, and a plan that takes half a minute counts as hung.
func TestCostGrowsInProportion(t *testing.T) {
	for name, chain := range chains {
		t.Run(name, func(t *testing.T) {
			short := cost(t, chain(2000))
			long := cost(t, chain(8000))
			t.Logf("%v, and %v for four times as much", short, long)
			if long > 8*short {
				t.Errorf("four times as much costs %v, not %v", long, short)
			}
		})
	}
}

// chains are groups of n Services that this node owns.
var chains = map[string]func(n int) lb.State{
	"all served": chained,
	"kube-proxy serves none": func(n int) lb.State {
		s := chained(n)
		s.Here.Unserved = map[lb.Key]bool{}
		for _, one := range s.Services {
			s.Here.Unserved[one.Key] = true
		}
		return s
	},
	"with a slice of ports on each address": func(n int) lb.State {
		s := chained(n)
		for i := range n {
			one := lb.PortSlice{Address: s.Services[i].Addresses[0], Node: "w3"}
			s.Slices = append(s.Slices, one)
		}
		return s
	},
}

// chained returns n Services, each of which shares one address with the one before and one with the next one. This node
// owns all addresses, and another one owned them.
func chained(n int) lb.State {
	s := base()
	s.Nodes["w1"].Labels["owner"] = "yes"
	s.Pools[0].Ranges[0] = lb.Range{From: numbered(v4, 0), To: numbered(v4, 65535)}
	s.L2Advertisements[0].NodeSelectors = labelled("owner", "yes")
	first := s.Services[0]
	s.Services = nil

	owners := map[netip.Addr]string{}
	for i := range n {
		one := new(*first)
		one.Key.Name = fmt.Sprintf("%05d", i)
		one.AnnouncedBy = nil
		one.Addresses = []netip.Addr{numbered(v4, i/2), numbered(v6, (i+1)/2)}
		for _, a := range one.Addresses {
			owners[a] = "w2"
		}
		s.Services = append(s.Services, one)
	}

	s.Here.Previous = &lb.Previous{Owners: lb.MapOf(owners)}
	return s
}

// numbered returns one of many addresses of a family.
func numbered(family netip.Addr, i int) netip.Addr {
	low, high := byte(i), byte(i>>8)
	if family.Is4() {
		return netip.AddrFrom4([4]byte{192, 0, high, low})
	}
	return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: high, 15: low})
}

// cost returns the shortest processor time of a plan in few tries: it does not depend on what else runs.
func cost(t *testing.T, s lb.State) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	used := func() time.Duration {
		var r unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &r)
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}

	shortest := time.Duration(0)
	for range 3 {
		var m Memory
		begin := used()
		p := m.ForNode("w1", s)
		m.Egress()
		took := used() - begin
		if p.Owners.Len() <= len(s.Services) {
			t.Fatalf("of %d Services only %d addresses have an owner", len(s.Services), p.Owners.Len())
		}
		if shortest == 0 || took < shortest {
			shortest = took
		}
	}

	return shortest
}
