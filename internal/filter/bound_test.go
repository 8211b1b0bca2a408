package filter

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// elements counts the elements of the table by set, without the families.
func (w *world) elements() map[string]int {
	w.t.Helper()
	content, err := w.table.owned.Actual().table.Read()
	must(w.t, err)
	count := map[string]int{}
	for _, m := range content.Elements {
		count[strings.TrimRight(m.Set, "46")]++
	}
	return count
}

// sourceList returns different prefixes of one host each.
func sourceList(n int) (out []netip.Prefix) {
	a := addr("100.64.0.0")
	for range n {
		out = append(out, netip.PrefixFrom(a, 32))
		a = a.Next()
	}
	return out
}

// TestListOnce: a list enters the kernel once for all ports, addresses and Services that have it, and a Service that
// gets another leaves it to them.
func TestListOnce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const ports, sources, services = 200, 5000, 3
		w := newWorld(t)
		var frontends []lb.Frontend
		for s := range services {
			list := sourceList(sources)
			for port := range ports {
				fe := tcp(fmt.Sprintf("192.0.2.%d", s+1))
				fe.Port = uint16(1000 + port)
				fe.Service.Name = fmt.Sprint("s", s)
				fe.Restricted = true
				fe.Allow = list
				frontends = append(frontends, fe)
			}
		}
		w.set(desired(frontends...))
		got := w.elements()
		if got["sources"] != sources || got["allow"] != services*ports {
			t.Errorf("%d prefixes and %d frontends with lists, want %d and %d", got["sources"], got["allow"], sources,
				services*ports)
		}
		all := 0
		for _, n := range got {
			all += n
		}
		if limit := sources + services*ports*5; all > limit {
			t.Errorf("%d elements, want at most %d: %v", all, limit, got)
		}
		frontends = slices.Clone(frontends)
		for i := range ports {
			frontends[i].Allow = prefixes("203.0.113.0/24")
		}
		w.set(desired(frontends...))
		got = w.elements()
		if got["sources"] != sources+1 || got["allow"] != (services-1)*ports || got["allow-odd"] != ports {
			t.Errorf("after a change of one Service: %v", got)
		}
		w.intact(w.table)
		w.set(desired(frontends[:ports]...))
		if got := w.elements(); got["sources"] != 1 {
			t.Errorf("with one Service left: %v", got)
		}
		w.intact(w.table)
	})
}

// TestBound: Services are closed whose lists exceed the bound, first of the namespace with the most, and no others.
func TestBound(t *testing.T) {
	const lists, size = 30, 10_000
	var d draft
	for i := range lists {
		fe := tcp(fmt.Sprintf("192.0.2.%d", i+2))
		fe.Service = lb.Key{Namespace: "evil", Name: fmt.Sprint("s", i)}
		fe.Restricted, fe.Allow = true, append(sourceList(size-1), netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", i)))
		d.Frontends = append(d.Frontends, fe)
	}
	honest := tcp(vip4)
	honest.Restricted, honest.Allow = true, sourceList(2*size)
	d.Frontends = append(d.Frontends, honest)
	var y library
	all := d.desired()
	img := newImage(&y, &all, nil)
	if img.refused[honest.Service] != nil || len(img.refused) != lists-(maxCost.prefixes-2*size)/size {
		t.Errorf("%d are refused: %v", len(img.refused), img.refused)
	}
	d.Frontends = d.Frontends[:20]
	all = d.desired()
	if img := newImage(&y, &all, img); len(img.refused) != 0 {
		t.Errorf("below the bound %d are refused", len(img.refused))
	}
}

// TestUnchanged: what is set again as it is in force costs nothing: nothing is computed, and nothing is sent.
func TestUnchanged(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(full())
		again, sent := *w.table.desired, w.sent()
		if n := testing.AllocsPerRun(10, func() { must(t, w.table.Set(again)) }); n > 1 {
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

// TestOneChangeAllocates: the change of one frontend makes the elements of that frontend only. The allocations of Set
// do not grow with the number of frontends.
func TestOneChangeAllocates(t *testing.T) {
	const maxAllocs = crowdServices / 20
	before, after := crowd(), crowd()
	after.Frontends[crowdServices/2].Allow = prefixes("198.51.100.0/24", "203.0.113.0/25")
	var y library
	states := changing(before, after)
	old := newImage(&y, &states[0], nil)
	n := testing.AllocsPerRun(3, func() {
		want := newImage(&y, &states[1], old)
		if c := want.From(old); len(c.Add) != 4 || len(c.Remove) != 7 {
			t.Errorf("a change adds %d elements and removes %d", len(c.Add), len(c.Remove))
		}
	})
	if n > maxAllocs {
		t.Errorf("%v allocations for one of %d frontends, want at most %d", n, crowdServices, maxAllocs)
	}
}

// TestEqual: no field of Desired is overlooked.
func TestEqual(t *testing.T) {
	values := []any{
		true, 1, uint16(1), "TCP", lb.Key{Name: "web"}, addr(vip4), []netip.Addr{addr(vip4)}, []string{"eth0"},
		pools(), desired(tcp(vip4)).desired().Frontends, lb.SetOf(addr(vip4)),
	}
	var plain Desired
	var try func(name string, get func(*Desired) reflect.Value)
	try = func(name string, get func(*Desired) reflect.Value) {
		other := plain
		field := get(&other)
		if field.Type() == reflect.TypeFor[lb.Filter]() {
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
		try(reflect.TypeFor[Desired]().Field(i).Name,
			func(d *Desired) reflect.Value { return reflect.ValueOf(d).Elem().Field(i) })
	}
}

// TestInvalid: a frontend that no plan may ask for is closed, and so are two of which one may not exist; all others are
// in force.
func TestInvalid(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		if ok, _ := w.table.Enforced(); ok {
			t.Error("enforced before anything was set")
		}
		w.set(desired(tcp(vip4)))
		if ok, _ := w.table.Enforced(); !ok {
			t.Error("not enforced")
		}
		bad := lb.Key{Namespace: "ns", Name: "bad"}
		for _, frontends := range [][]lb.Frontend{
			{{Address: addr(closedVIP4), Protocol: "ICMP", Port: 80, Service: bad}},
			{{Protocol: "TCP", Port: 80, Service: bad}},
			{{Address: netip.MustParseAddr("fe80::1%eth0"), Protocol: "TCP", Port: 80, Service: bad}},
		} {
			w.set(desired(append(frontends, tcp(vip4))...))
			if refused := w.table.Refused(); len(refused) != 1 || refused[bad] == nil {
				t.Errorf("%+v: refused are %v", frontends, refused)
			}
			w.finds(answer, w.client, "tcp", client4, vip4, 80)
		}
		w.set(desired(tcp(vip4), tcp(vip4), tcp(vip6)))
		w.finds(silence, w.client, "tcp", client4, vip4, 80)
		w.finds(answer, w.client, "tcp", client6, vip6, 80)
		w.set(desired())
		if refused := w.table.Refused(); len(refused) != 0 {
			t.Errorf("refused are %v", refused)
		}
	})
}

// TestRulesAreBounded: a tenant's lists of many lengths, each Service with others or with another limit, do not have
// each kernel make a rule for each: beyond the bound his Services are closed, and no others. For the kernel the work is
// quadratic.
func TestRulesAreBounded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		allow  func(i int) []netip.Prefix
		limits bool
	}{
		{"other lengths", func(i int) []netip.Prefix { return manyLengths(i) }, false},
		{"one list with other limits", func(int) []netip.Prefix { return manyLengths(0) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := crowd()
			for i := range 400 {
				fe := lb.Frontend{
					Address: netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1)), Protocol: "TCP", Port: 80,
					Access: lb.Access{Restricted: true,
						Allow: tt.allow(i)}, Service: lb.Key{Namespace: "evil", Name: fmt.Sprint(i)},
				}
				if tt.limits {
					fe.ConnectionLimit = i + 1
				}
				d.Frontends = append(d.Frontends, fe)
			}
			same := d.Frontends[len(d.Frontends)-400]
			same.Address, same.Service = netip.MustParseAddr("2001:db8::1:0"), lb.Key{Namespace: "honest", Name: "web"}
			d.Frontends = append(d.Frontends, same)
			all := d.desired()
			img := newImage(&library{}, &all, nil)
			rules, evil := map[profile]int{}, 0
			for fe := range img.all() {
				rules[fe.profile.even()] = fe.profile.rules()
			}
			sum := 0
			for _, n := range rules {
				sum += n
			}
			for s := range img.refused {
				if s.Namespace != "evil" {
					t.Errorf("%s is refused: %v", s, img.refused[s])
				}
				evil++
			}
			if sum > maxCost.rules || evil == 0 || evil == 400 {
				t.Errorf("the table has %d rules for lists, want %d at most; "+
					"%d of 400 Services of the tenant are closed", sum, maxCost.rules, evil)
			}
		})
	}
}

// manyLengths returns prefixes of most lengths, which differ with i.
func manyLengths(i int) (out []netip.Prefix) {
	for bits := 1; bits <= 128; bits++ {
		if (bits+i*7)%(9+i/9) == 0 {
			continue
		}
		a := netip.MustParseAddr("4000::").As16()
		a[(bits-1)/8] ^= 1 << (7 - (bits-1)%8)
		out = append(out, netip.PrefixFrom(netip.AddrFrom16(a), bits).Masked())
	}
	return out
}
