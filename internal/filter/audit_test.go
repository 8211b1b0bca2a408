package filter

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

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
