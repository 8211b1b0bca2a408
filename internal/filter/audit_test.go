package filter

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// A change does not wait for an audit of many frontends, and an audit does not take it for damage.
func TestSetDuringAudit(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const rounds, slower = 9, 10
		table := quietTable()
		states := [2]Desired{crowd(), crowd()}
		states[1].Frontends[crowdServices/2].Allow = prefixes("198.51.100.0/24", "203.0.113.0/25")
		set := func(i int) time.Duration {
			begin := time.Now()
			if err := table.Set(states[i%2]); err != nil {
				t.Fatal(err)
			}
			return time.Since(begin)
		}
		set(0)
		var quiet, during []time.Duration
		for i := range rounds {
			quiet = append(quiet, set(i+1))
		}
		begin := time.Now()
		if table.owned.Audit() {
			t.Error("an audit of what is as it should be finds a difference")
		}
		audit := time.Since(begin)
		for i := range rounds {
			var begun atomic.Bool
			done := make(chan bool)
			go func() {
				begun.Store(true)
				done <- table.owned.Audit()
			}()
			nstest.Until(t, patient, "an audit", begun.Load)
			during = append(during, set(i))
			if <-done {
				t.Error("an audit takes what was set for damage")
			}
		}
		a, b := median(quiet), median(during)
		t.Logf("set: %v; during an audit: %v, at most %v; an audit: %v", a, b, slices.Max(during), audit)
		if b > slower*a {
			t.Errorf("set takes %v during an audit, %v otherwise", b, a)
		}
		if table.owned.Audit() {
			t.Error("an audit of what was set finds a difference")
		}
	})
}

func median(list []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(list))[len(list)/2]
}

// What is set again as it is in force costs nothing: nothing is computed, and nothing is sent.
func TestUnchanged(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(full())
		again, sent := full(), w.sent()
		if n := testing.AllocsPerRun(10, func() { w.set(again) }); n > 1 {
			t.Errorf("%v allocations", n)
		}
		if *sent > 0 {
			t.Errorf("something was sent")
		}
		w.node.Output("nft", "delete", "table", "inet", tableName)
		if !w.table.owned.Audit() {
			t.Error("not repaired")
		}
		w.intact(w.table)
	})
}

// The elements of one frontend are made if one frontend changes, and not those of all: what Set allocates does not
// grow with their number.
func TestOneChangeAllocates(t *testing.T) {
	const most = crowdServices / 20
	before, after := crowd(), crowd()
	after.Frontends[crowdServices/2].Allow = prefixes("198.51.100.0/24", "203.0.113.0/25")
	var y library
	old := newImage(&y, &before, nil)
	old.From(nil)
	n := testing.AllocsPerRun(3, func() {
		want := newImage(&y, &after, old)
		if c := want.From(old); len(c.Add) != 4 || len(c.Remove) != 7 {
			t.Errorf("a change adds %d elements and removes %d", len(c.Add), len(c.Remove))
		}
	})
	if n > most {
		t.Errorf("%v allocations for one of %d frontends, want at most %d", n, crowdServices, most)
	}
}

// The element of an address stays for as long as the address has a frontend, whichever of its frontends goes.
func TestAddressElement(t *testing.T) {
	port := func(a string, n uint16) lb.Frontend {
		f := tcp(a)
		f.Port = n
		return f
	}
	for _, tt := range []struct {
		name          string
		before, after []lb.Frontend
		remove, add   int
	}{
		{"the first of three goes", []lb.Frontend{port(vip4, 80), port(vip4, 81), port(vip4, 82)}, []lb.Frontend{port(vip4, 81), port(vip4, 82)}, 0, 0},
		{"one is ahead of the first", []lb.Frontend{port(vip4, 81)}, []lb.Frontend{port(vip4, 80), port(vip4, 81)}, 0, 0},
		{"the last one goes", []lb.Frontend{port(vip4, 80), port(vip6, 80)}, []lb.Frontend{port(vip6, 80)}, 1, 0},
		{"another address", []lb.Frontend{port(vip4, 80)}, []lb.Frontend{port(vip4, 80), port(vip6, 80), port(vip6, 81)}, 0, 1},
	} {
		before, after := desired(tt.before...), desired(tt.after...)
		var y library
		old := newImage(&y, &before, nil)
		want := newImage(&y, &after, old)
		c := want.From(old)
		count := func(list []nft.SetElement) (n int) {
			for _, m := range list {
				if strings.HasPrefix(m.Set, addressesSet) {
					n++
				}
			}
			return n
		}
		if remove, add := count(c.Remove), count(c.Add); remove != tt.remove || add != tt.add {
			t.Errorf("%s: removes %d and adds %d addresses, want %d and %d", tt.name, remove, add, tt.remove, tt.add)
		}
	}
}

// No field of what is desired is overlooked.
func TestEqual(t *testing.T) {
	values := []any{
		true, 1, uint16(1), "TCP", lb.Key{Name: "web"}, addr(vip4), []netip.Addr{addr(vip4)}, []string{"eth0"},
		prefixes("0.0.0.0/0"), pools(), []lb.Frontend{tcp(vip4)},
	}
	var plain Desired
	plain.Frontends = make([]lb.Frontend, 1)
	var try func(name string, get func(*Desired) reflect.Value)
	try = func(name string, get func(*Desired) reflect.Value) {
		other := plain
		other.Frontends = slices.Clone(plain.Frontends)
		field := get(&other)
		if slices.Contains([]reflect.Type{reflect.TypeFor[lb.Filter](), reflect.TypeFor[lb.Frontend](), reflect.TypeFor[lb.Access]()}, field.Type()) {
			for i := range field.NumField() {
				try(name+"."+field.Type().Field(i).Name, func(d *Desired) reflect.Value { return get(d).Field(i) })
			}
			return
		}
		at := slices.IndexFunc(values, func(v any) bool { return reflect.TypeOf(v) == field.Type() })
		if at < 0 {
			t.Fatalf("%s: no value of type %s here", name, field.Type())
		}
		if !plain.equal(&other) {
			t.Errorf("%s differs before it was changed", name)
		}
		field.Set(reflect.ValueOf(values[at]))
		if plain.equal(&other) {
			t.Errorf("%s is overlooked", name)
		}
	}
	for i := range reflect.TypeFor[Desired]().NumField() {
		try(reflect.TypeFor[Desired]().Field(i).Name, func(d *Desired) reflect.Value { return reflect.ValueOf(d).Elem().Field(i) })
	}
	try("Frontend", func(d *Desired) reflect.Value { return reflect.ValueOf(&d.Frontends[0]).Elem() })
}
