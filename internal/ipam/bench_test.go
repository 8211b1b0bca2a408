package ipam

import (
	"fmt"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// manyServices returns Services without special requests, ordered by key.
func manyServices(n int, family lb.Family) []lb.Service {
	services := make([]lb.Service, n)
	for i := range services {
		services[i] = service(fmt.Sprintf("s%06d", i), only(family), created(i))
	}
	return services
}

func benchmarkAssign(b *testing.B, n int, family lb.Family, pools ...lb.Pool) {
	s := lb.State{Services: manyServices(n, family), Pools: pools}
	for b.Loop() {
		if got := Assign(s).Assignments[n-1].Reason; got != lb.Assigned {
			b.Fatal(got)
		}
	}
}

func BenchmarkAssign10k(b *testing.B) {
	benchmarkAssign(b, 10_000, lb.IPv4, pool("p", "10.0.0.0-10.0.255.255"))
}

func BenchmarkAssign10kFrom64(b *testing.B) {
	benchmarkAssign(b, 10_000, lb.IPv6, pool("p", "2001:db8::-2001:db8::ffff:ffff:ffff:ffff"))
}

func BenchmarkAssign50k(b *testing.B) {
	benchmarkAssign(b, 50_000, lb.IPv4, pool("p", "10.0.0.0-10.0.255.255"))
}

// Every Service waits and every condition says why.
func BenchmarkAssign10kPending(b *testing.B) {
	var pools []lb.Pool
	for i := range 100 {
		pools = append(pools, with(pool(fmt.Sprintf("p%02d", i), "10.0.0.0"), allocation(lb.Allocation{ByNamespace: true, Namespaces: []string{"other"}})))
	}
	s := lb.State{Services: manyServices(10_000, lb.IPv4), Pools: pools}
	for b.Loop() {
		Assign(s)
	}
}

// Ten thousand keys, two Services each.
func BenchmarkAssign10kSharingKeys(b *testing.B) {
	s := lb.State{Services: manyServices(20_000, lb.IPv4), Pools: []lb.Pool{pool("p", "10.0.0.0-10.0.255.255")}}
	for i := range s.Services {
		s.Services[i].SharingKey = fmt.Sprint(i / 2)
		s.Services[i].Ports = []lb.Port{{Protocol: "TCP", Port: uint16(1 + i%2)}}
	}
	for b.Loop() {
		if got := Assign(s).Pools[0].AssignedIPv4; got != 10_000 {
			b.Fatal(got)
		}
	}
}

// One key and one port for all: no two Services can share.
func BenchmarkAssign2kClashes(b *testing.B) {
	s := lb.State{Services: manyServices(2_000, lb.IPv4), Pools: []lb.Pool{pool("p", "10.0.0.0-10.0.255.255")}}
	for i := range s.Services {
		s.Services[i].SharingKey, s.Services[i].Ports = "k", []lb.Port{{Protocol: "TCP", Port: 80}}
	}
	for b.Loop() {
		Assign(s)
	}
}

// One key, and each Service has very many ports.
func BenchmarkAssign12SharersWithManyPorts(b *testing.B) {
	s := sharersWithPorts(12, 5_000)
	for b.Loop() {
		if got := Assign(s).Pools[0].AssignedIPv4; got != 1 {
			b.Fatal(got)
		}
	}
}

// Very many Services wait for addresses that were released a short while ago.
func BenchmarkAssign5kQuarantined(b *testing.B) {
	s := waitingForReleased(5_000, 20)
	for b.Loop() {
		if got := Assign(s).Pools[0].AssignedIPv4; got != 0 {
			b.Fatal(got)
		}
	}
}

// Very many Services of one key have the same two ports.
func BenchmarkAssignKeyOnManyAddresses(b *testing.B) {
	s := sharersOnManyAddresses(500, 2_000)
	for b.Loop() {
		Assign(s)
	}
}
