package ipam

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const foreignNode = "203.0.113.9"

// overwrittenState returns the state in which a, b and c had 192.0.2.1 to 192.0.2.3, and another load balancer wrote its
// address into the status of all. Nothing else is free for d, which waits.
func overwrittenState() lb.State {
	p := with(pool("p", "192.0.2.1-192.0.2.3"), func(p *lb.Pool) { p.ReuseDelay = 10 * time.Minute })
	s := lb.State{Now: time.Unix(0, 0), Pools: []lb.Pool{p}, Services: []lb.Service{service("a"), service("b"), service("c"), service("d", created(1))}}
	s = applied(s, Assign(s))
	rewrite(&s, foreignNode)
	return s
}

// rewrite is what the other load balancer does.
func rewrite(s *lb.State, addresses ...string) {
	for i := range s.Services[:3] {
		s.Services[i].Addresses = addrs(addresses...)
	}
}

func setRenew(s *lb.State, renew bool) {
	for i := range s.Services[:3] {
		s.Services[i].Renew = renew
	}
}

// has writes what the Services hold, and why.
func has(r Result) string {
	var out string
	for _, a := range r.Assignments {
		out += fmt.Sprintf("%s %v %s; ", a.Service.Name, a.Addresses, a.Reason)
	}
	return out
}

const (
	left     = "a [203.0.113.9] ForeignAddress; b [203.0.113.9] ForeignAddress; c [203.0.113.9] ForeignAddress; "
	had      = "a [192.0.2.1] Assigned; b [192.0.2.2] Assigned; c [192.0.2.3] Assigned; "
	isFull   = "d [] PoolExhausted; "
	isBarred = "d [] Quarantined; "
)

// TestOverwrittenStatus: addresses that another load balancer overwrote are released: they are recorded, wait for
// reuseDelay, and are given back on renew. That is true of all Services alike, though all show the same address.
func TestOverwrittenStatus(t *testing.T) {
	s := overwrittenState()
	step := func(what, want string) {
		t.Helper()
		s.Now = s.Now.Add(time.Second)
		r := Assign(s)
		if diff := cmp.Diff(want, has(r)); diff != "" {
			t.Errorf("%s: -want +got\n%s", what, diff)
		}
		s = applied(s, r)
	}
	step("overwritten", left+isFull)
	if got := len(s.Pools[0].Released); got != 3 {
		t.Errorf("the pool records %d releases, want 3", got)
	}
	step("recorded", left+isBarred)
	setRenew(&s, true)
	step("renewed", had+isFull)
	step("the same", had+isFull)
	for range 2 {
		rewrite(&s, foreignNode)
		step("overwritten again", left+isFull)
		step("nobody fights", left+isBarred)
		step("nor later", left+isBarred)
		setRenew(&s, false)
		step("renew is removed", left+isBarred)
		setRenew(&s, true)
		step("and set again", had+isFull)
	}
	setRenew(&s, false)
	rewrite(&s, foreignNode)
	step("overwritten without renew", left+isFull)
	rewrite(&s)
	step("the other load balancer is off", had+isFull)
}

// TestOverwrittenIsReleased: when reuseDelay is over others may have the address. Its Service waits for it.
func TestOverwrittenIsReleased(t *testing.T) {
	s := overwrittenState()
	s = applied(s, Assign(s))
	s.Now = s.Now.Add(time.Hour)
	r := Assign(s)
	if got, want := has(r), left+"d [192.0.2.1] Assigned; "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	s = applied(s, r)
	rewrite(&s)
	if got, want := has(Assign(s)), "a [] AddressInUse; b [192.0.2.2] Assigned; c [192.0.2.3] Assigned; d [192.0.2.1] Assigned; "; got != want {
		t.Errorf("the other load balancer is off: got %s, want %s", got, want)
	}
}
