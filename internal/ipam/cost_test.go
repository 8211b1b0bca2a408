package ipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/sys/unix"
)

// sharersWithPorts returns Services of one key that share an address, each with many ports of its own.
func sharersWithPorts(services, ports int) lb.State {
	s := lb.State{Services: manyServices(services, lb.IPv4), Pools: []lb.Pool{pool("p", "10.0.0.0-10.0.0.255")}}
	for i := range s.Services {
		s.Services[i].SharingKey = "k"
		for j := range ports {
			s.Services[i].Ports = append(s.Services[i].Ports, lb.Port{Protocol: "TCP", Port: uint16(1 + i*ports + j)})
		}
	}
	return s
}

// waitingForReleased returns Services that wait for pools of which all addresses were released a short while ago.
func waitingForReleased(services, pools int) lb.State {
	s := lb.State{Now: time.Unix(1000, 0), Services: manyServices(services, lb.IPv4)}
	for i := range pools {
		p := pool(fmt.Sprintf("p%02d", i), fmt.Sprintf("10.0.%d.0-10.0.%d.255", i, i))
		p.ReuseDelay = time.Hour
		for j := range 256 {
			addr := netip.AddrFrom4([4]byte{10, 0, byte(i), byte(j)})
			p.Released = append(p.Released,
				lb.Release{Address: addr, Time: s.Now.Add(-time.Minute), Holder: lb.Key{Namespace: "gone", Name: fmt.Sprint(j)},
					UID: fmt.Sprint(j)})
		}
		s.Pools = append(s.Pools, p)
	}
	return s
}

// sharersOnManyAddresses returns Services of one key that hold an address each, half with one port and half with
// another, and Services with both ports, which find each address taken.
func sharersOnManyAddresses(held, waiting int) lb.State {
	s := lb.State{Services: manyServices(held+waiting, lb.IPv4), Pools: []lb.Pool{pool("p", "10.0.0.0-10.0.255.255")}}
	s.Pools[0].Quota = map[lb.Family]int{lb.IPv4: held}
	for i := range s.Services {
		svc := s.Services[i]
		svc.SharingKey = "k"
		if i >= held {
			svc.Ports = []lb.Port{{Protocol: "TCP", Port: 1}, {Protocol: "TCP", Port: 2}}
			continue
		}
		svc.Ports = []lb.Port{{Protocol: "TCP", Port: uint16(1 + i%2)}}
		svc.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}
	}
	return s
}

// cpu returns the processor time of a decision, which does not depend on what else runs.
func cpu(s lb.State) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var r unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &r)
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	Assign(s)
	begin, n := used(), time.Duration(0)
	for ; n < 3 || used()-begin < 50*time.Millisecond; n++ {
		Assign(s)
	}
	return (used() - begin) / n
}

// What one tenant makes four times as long costs four times as much, and not sixteen times.
func TestCostGrowsInProportion(t *testing.T) {
	for name, state := range map[string]func(n int) lb.State{
		"sharers with many ports":  func(n int) lb.State { return sharersWithPorts(12, 1_250*n) },
		"sharers of one address":   func(n int) lb.State { return sharersWithPorts(500*n, 8) },
		"a key on many addresses":  func(n int) lb.State { return sharersOnManyAddresses(250*n, 250*n) },
		"waiting for one released": func(n int) lb.State { return waitingForReleased(500*n, 20) },
	} {
		t.Run(name, func(t *testing.T) {
			short, long := cpu(state(1)), cpu(state(4))
			t.Logf("%s, and %s for four times as much", short, long)
			if long > 8*short {
				t.Errorf("four times as much costs %s, not %s", long, short)
			}
		})
	}
}

// manyServices returns Services without special requests, ordered by key.
func manyServices(n int, family lb.Family) []*lb.Service {
	services := make([]*lb.Service, n)
	for i := range services {
		services[i] = service(fmt.Sprintf("s%06d", i), only(family), created(i))
	}
	return services
}

// BenchmarkAssign is a decision where all Services but the last have their addresses.
func BenchmarkAssign(b *testing.B) {
	for name, families := range map[string]func(*lb.Service){"IPv4": only(lb.IPv4), "dual": dual(lb.RequireDualStack)} {
		b.Run(name, func(b *testing.B) {
			random := rand.New(rand.NewPCG(0, 0))
			s := lb.State{Pools: []lb.Pool{pool("lan", "10.0.0.0-10.0.255.255", "2001:db8::-2001:db8::ffff")}}
			for i := range 10_000 {
				svc := service(fmt.Sprintf("s%06d", i), families, created(random.IntN(1<<20)))
				svc.UID = fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
				s.Services = append(s.Services, svc)
			}
			s = applied(s, Assign(s))
			s.Services = append(s.Services, service("t", families))
			b.ReportAllocs()
			for b.Loop() {
				Assign(s)
			}
		})
	}
}
