package filter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

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
		if got := w.elements(); got["sources"] != sources+1 || got["allow"] != (services-1)*ports || got["allow-odd"] != ports {
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
	img := newImage(&y, &d, nil)
	if img.refused[honest.Service] != nil || len(img.refused) != lists-(maxCost.prefixes-2*size)/size {
		t.Errorf("%d are refused: %v", len(img.refused), img.refused)
	}
	d.Frontends = d.Frontends[:20]
	if img := newImage(&y, &d, img); len(img.refused) != 0 {
		t.Errorf("below the bound %d are refused", len(img.refused))
	}
}
