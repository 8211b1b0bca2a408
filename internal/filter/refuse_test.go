package filter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// refuse makes the kernel refuse the elements of a list, which are too long, until the returned function is called. It counts
// the refusals.
func (t *Table) refuse(ipv6 bool, given ...netip.Prefix) (refusals *int, take func()) {
	l, refusals := t.library.list(ipv6, given), new(int)
	good := l.keys
	l.keys += strings.Repeat("x", l.size)
	transact := t.owned.Transact
	t.owned.Transact = func(b *nft.Batch) error {
		err := transact(b)
		if err != nil {
			*refusals++
		}
		return err
	}
	return refusals, func() { l.keys = good }
}

// elements counts the elements of the table by set, without the families.
func (w *world) elements() map[string]int {
	w.t.Helper()
	is, err := w.actual().table.Read()
	if err != nil {
		w.t.Fatal(err)
	}
	count := map[string]int{}
	for _, m := range is.Elements {
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

// TestListOnce: a list enters the kernel once for all ports, addresses and Services that have it, and a Service that gets
// another leaves it to them.
func TestListOnce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const ports, sources, services = 200, 5000, 3
		w := newWorld(t)
		var frontends []lb.Frontend
		for s := range services {
			list := sourceList(sources)
			for port := range ports {
				fe := tcp(fmt.Sprintf("192.0.2.%d", s+1))
				fe.Port, fe.Service.Name, fe.Restricted, fe.Allow = uint16(1000+port), fmt.Sprint("s", s), true, list
				frontends = append(frontends, fe)
			}
		}
		w.set(desired(frontends...))
		got := w.elements()
		if got["sources"] != sources || got["allow"] != services*ports {
			t.Errorf("%d prefixes and %d frontends with lists, want %d and %d", got["sources"], got["allow"], sources, services*ports)
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
		w.table.owned.Sweep()
		if got := w.elements(); got["sources"] != sources+1 || got["allow"] != (services-1)*ports || got["allow-odd"] != ports {
			t.Errorf("after a change of one Service: %v", got)
		}
		w.intact(w.table)
		w.set(desired(frontends[:ports]...))
		w.table.owned.Sweep()
		if got := w.elements(); got["sources"] != 1 {
			t.Errorf("with one Service left: %v", got)
		}
		w.intact(w.table)
	})
}

// TestOneRefused: the kernel refuses the list of one Service beside a thousand. That one is closed, and all others are in
// force, also those that change later; once the kernel takes the list, it is in force too.
func TestOneRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const others = 1000
		w := newWorld(t)
		w.proxy()
		w.serve(w.pod, 80)
		bad := tcp(vip6)
		bad.Service, bad.Restricted, bad.Allow = lb.Key{Namespace: "evil", Name: "bad"}, true, prefixes(client6+"/128")
		good := tcp(vip4)
		good.Restricted, good.Allow = true, prefixes(client4+"/32")
		d := desired(append(crowd().Frontends[:others], good, bad)...)
		check := func(want string) {
			t.Helper()
			if ok, _ := w.table.Enforced(); !ok {
				t.Error("not in force")
			}
			closed := w.table.Refused()
			if (want == silence) != (closed[bad.Service] != nil) || len(closed) > 1 {
				t.Errorf("refused are %v", closed)
			}
			w.finds(answer, w.client, "tcp", client4, vip4, 80)
			w.finds(silence, w.client, "tcp", stranger4, vip4, 80)
			w.finds(want, w.client, "tcp", client6, vip6, 80)
			w.finds(silence, w.client, "tcp", stranger6, vip6, 80)
			w.intact(w.table)
		}
		asks, _ := w.table.refuse(true, bad.Allow...)
		w.set(d)
		check(silence)
		if *asks != 1 {
			t.Errorf("%d refusals to find one list of %d, want 1", *asks, others)
		}
		// Others change while it is refused, and ask for nothing that is refused.
		d.Frontends = slices.Clone(d.Frontends)
		d.Frontends[1].Allow = prefixes("203.0.113.0/24")
		w.set(d)
		check(silence)
		if *asks != 1 {
			t.Errorf("a change of another Service asked %d times for the refused list", *asks-1)
		}
		// Another speaker finds the same.
		w.table = New(Config{Log: testLog(t), Timers: nft.Timers{RetryInterval: 500 * time.Millisecond}})
		_, take := w.table.refuse(true, bad.Allow...)
		w.set(d)
		check(silence)
		w.run(w.table)
		w.table.owned.Lock()
		take()
		w.table.owned.Unlock()
		nstest.Until(t, patient, "the kernel is asked again", func() bool { return len(w.table.Refused()) == 0 })
		check(answer)
	})
}

// TestRefusedLater: a list that the kernel refuses where another was in force closes its Service, and the clients of others
// notice nothing.
func TestRefusedLater(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.proxy()
		w.serve(w.pod, 80)
		bad, good := tcp(vip6), tcp(vip4)
		bad.Service.Name, bad.Restricted, bad.Allow = "bad", true, prefixes(client6+"/128")
		good.Restricted, good.Allow = true, prefixes(client4+"/32")
		w.set(desired(good, bad))
		w.finds(answer, w.client, "tcp", client6, vip6, 80)
		bad.Allow = prefixes("2001:db8:c::/64")
		w.table.refuse(true, bad.Allow...)
		w.set(desired(good, bad))
		if w.table.Refused()[bad.Service] == nil {
			t.Error("not refused")
		}
		w.finds(silence, w.client, "tcp", client6, vip6, 80)
		w.finds(answer, w.client, "tcp", client4, vip4, 80)
		w.intact(w.table)
		// A list that the kernel takes is in force at once.
		bad.Allow = prefixes(client6 + "/128")
		w.set(desired(good, bad))
		w.finds(answer, w.client, "tcp", client6, vip6, 80)
		if refused := w.table.Refused(); len(refused) != 0 {
			t.Errorf("refused are %v", refused)
		}
	})
}

// TestBound: lists beyond the bound of all are closed, those of the namespace first that has most, and no others.
func TestBound(t *testing.T) {
	const lists, size = 30, 10_000
	var d Desired
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
	img := newImage(&y, &d, nil, nil)
	if img.refused[honest.Service] != nil || len(img.refused) != lists-(maxPrefixes-2*size)/size {
		t.Errorf("%d are refused: %v", len(img.refused), img.refused)
	}
	d.Frontends = d.Frontends[:20]
	if img := newImage(&y, &d, nil, img); len(img.refused) != 0 {
		t.Errorf("below the bound %d are refused", len(img.refused))
	}
}
