package filter

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// town is a filter of which each step changes something.
type town struct {
	*rand.Rand
	d Desired
}

func (w *town) address() netip.Addr {
	if w.IntN(2) == 0 {
		return netip.AddrFrom16([16]byte{0xfd, 15: byte(w.IntN(30))})
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(w.IntN(30))})
}

// frontends are of an address; now and then two are the same.
func (w *town) frontends(a netip.Addr) *[]lb.Frontend {
	var out []lb.Frontend
	for range 1 + w.IntN(3) {
		f := lb.Frontend{
			Address: a, Protocol: []string{"TCP", "UDP"}[w.IntN(2)], Port: uint16(80 + len(out)),
			Service: lb.Key{Name: fmt.Sprint("s", w.IntN(5))},
		}
		if f.LogDrops, f.Refuse = w.IntN(3) == 0, w.IntN(5) == 0; w.IntN(2) == 0 {
			f.Restricted = true
			f.Allow = [][]netip.Prefix{prefixes("10.0.0.0/8", "fd01::/16"), prefixes("10.1.0.0/16"), nil}[w.IntN(3)]
		}
		if f.ConnectionLimit = w.IntN(2); w.IntN(3) == 0 {
			f.Deny = prefixes("10.2.0.0/16", "fd02::/64")
		}
		if w.IntN(3) == 0 {
			f.ClusterIP = netip.AddrFrom4([4]byte{10, 96, 0, byte(w.IntN(3))})
		}
		if w.IntN(200) == 0 {
			f.Port = 80
		}
		out = append(out, f)
	}
	return &out
}

func (w *town) step() {
	switch a := w.address(); w.IntN(12) {
	case 0:
		w.d.Pings = w.d.Pings.Put(a, struct{}{})
	case 1:
		w.d.Pings = w.d.Pings.Without(a)
	case 2:
		w.d.Relayed = lb.SetOf(a, w.address())
	case 3:
		w.d.Guarded = []lb.Range{{
			From: netip.AddrFrom4([4]byte{192, 0, 2, 0}), To: netip.AddrFrom4([4]byte{192, 0, 2, byte(w.IntN(30))}),
		}}
	case 4:
		w.d.PodLinks, w.d.NoLimits, w.d.NoInternal = []string{fmt.Sprint("pod", w.IntN(2))}, w.IntN(5) == 0, w.IntN(5) == 0
		w.d.NoRoutes = w.IntN(5) == 0
	case 5, 6, 7:
		w.d.Frontends = w.d.Frontends.Without(a)
	default:
		w.d.Frontends = w.d.Frontends.Put(a, w.frontends(a))
	}
}

// content is the content of a table after changes: elements, and the names of sets and chains beyond its layout.
type content struct {
	elements map[nft.Element]bool
	names    map[string]bool
}

func (c content) apply(t *testing.T, change nft.Change) {
	t.Helper()
	for _, m := range change.Remove {
		if !c.elements[m] {
			t.Errorf("removes %v, which is not there", m)
		}
		delete(c.elements, m)
	}
	for _, m := range change.Add {
		if c.elements[m] {
			t.Errorf("adds %v, which is there", m)
		}
		c.elements[m] = true
	}
	for _, name := range slices.Concat(change.OldChains, change.OldSets) {
		if !c.names[name] {
			t.Errorf("removes %s, which is not there", name)
		}
		delete(c.names, name)
	}
	for _, s := range change.Sets {
		c.names[s.Name] = true
	}
	for _, chain := range change.Chains {
		if c.names[chain.Name] {
			t.Errorf("adds chain %s, which is there", chain.Name)
		}
		c.names[chain.Name] = true
	}
}

// TestImage: image after image, what is made of the one before is what is made from nothing, but for parities, and the
// changes from one to the next make the table hold it.
func TestImage(t *testing.T) {
	shared := 0
	for seed := range uint64(4) {
		w := &town{Rand: rand.New(rand.NewPCG(seed, 0))}
		var y library
		var old *image
		kernel := content{map[nft.Element]bool{}, map[string]bool{}}
		for step := range 300 {
			for range 1 + w.IntN(2) {
				w.step()
			}
			d := w.d
			img := newImage(&y, &d, old)
			if old != nil && old.layout != img.layout {
				kernel = content{map[nft.Element]bool{}, map[string]bool{}}
				kernel.apply(t, img.From(nil))
			} else {
				kernel.apply(t, img.From(old))
			}
			if want := newImage(&y, &d, parities(old)); !same(img, want) {
				t.Errorf("differs from an image from nothing: %+v, want %+v", img, want)
			}
			whole := content{map[nft.Element]bool{}, map[string]bool{}}
			if whole.apply(t, img.From(nil)); !reflect.DeepEqual(kernel, whole) {
				t.Errorf("the table holds %v, want %v", kernel, whole)
			}
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
			if old != nil && len(old.refused)+len(img.refused) == 0 {
				shared++
			}
			old = img
			y.clean(img)
		}
	}
	if shared < 500 {
		t.Errorf("%d images are made of the one before, which is too few to show anything", shared)
	}
}

// parities returns an image that has the parities of another one, but of which nothing else is taken.
func parities(old *image) *image {
	if old == nil {
		return nil
	}
	return &image{
		desired: &Desired{PodLinks: []string{"other"}}, frontends: old.frontends,
		layout: old.layout, table: old.table, refused: map[lb.Key]error{{}: nil},
	}
}

// same reports whether two images have the same frontends, counts and bounds.
func same(a, b *image) bool {
	texts := func(img *image) (out []string) {
		for fe := range img.all() {
			out = append(out, fmt.Sprint(*fe.Frontend, fe.profile, fe.refused))
			for _, l := range fe.lists() {
				if l != nil {
					out = append(out, fmt.Sprint(l.number, l.keys))
				}
			}
		}
		for l, n := range img.lists.All() {
			out = append(out, fmt.Sprint(l.number, n))
		}
		for c, use := range img.chains.All() {
			out = append(out, fmt.Sprint(c, use.n))
		}
		for p, list := range img.internal.All() {
			out = append(out, fmt.Sprint(p, *list))
		}
		return append(out,
			fmt.Sprint(img.cost, slices.Collect(img.outside.Keys()), img.layout, img.common,
				slices.Sorted(maps.Keys(keys(img.refused)))))
	}
	return slices.Equal(texts(a), texts(b))
}

func keys(refused map[lb.Key]error) map[string]bool {
	out := map[string]bool{}
	for k := range refused {
		out[k.String()] = true
	}
	return out
}

// TestCleaned: the lists of a frontend that is closed are not forgotten, or another list would get their number, and
// both be one for the image.
func TestCleaned(t *testing.T) {
	var y library
	sources := func(i int) []netip.Prefix {
		return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}
	}
	closed := frontend{
		Frontend: &lb.Frontend{}, allow: y.find(false, sources(0)), deny: y.find(false, sources(1)),
		refused: errors.New("too many"),
	}
	for i := range 2000 {
		y.find(false, sources(2+i))
	}
	y.clean(&image{frontends: lb.MapOf(map[netip.Addr]*[]frontend{closed.Address: {closed}})})
	if len(y.lists) != 2 || y.find(false, sources(0)) != closed.allow || y.find(false, sources(1)) != closed.deny {
		t.Errorf("%d lists are left; the closed frontend may have others", len(y.lists))
	}
}
