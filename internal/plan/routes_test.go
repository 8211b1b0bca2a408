package plan

import (
	"math/rand/v2"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestConflictOfAnyOrder checks that the sentence on a route with two values of an attribute names the two oldest
// advertisements that contradict each other, in whichever order they are read.
func TestConflictOfAnyOrder(t *testing.T) {
	const want = `BGPAdvertisement "b" is older than "d" and gives 192.0.2.10/32 another localPref, med or ` +
		`asPathPrepend, which is used`
	ads := []lb.BGPAdvertisement{
		{Name: "a"},
		{Name: "b", LocalPref: 1},
		{Name: "c", LocalPref: 1},
		{Name: "d", LocalPref: 2},
		{Name: "e", LocalPref: 3},
		{Name: "f", LocalPref: 2},
	}
	all := []routeTo{
		{prefix: single(v6), peer: "r1", ad: 0},
		{prefix: single(v4), peer: "r1", ad: 1},
		{prefix: single(v4), peer: "r1", ad: 2},
		{prefix: single(v4), peer: "r1", ad: 3},
		{prefix: single(v4), peer: "r1", ad: 4},
		{prefix: single(v4), peer: "r1", ad: 3},
		{prefix: single(v4), peer: "r2", ad: 4},
		{prefix: single(v4), peer: "r2", ad: 5},
		{prefix: single(v4), peer: "r3", ad: 1},
	}

	random := rand.New(rand.NewPCG(1, 0))
	for range 200 {
		random.Shuffle(len(all), func(i, j int) {
			all[i], all[j] = all[j], all[i]
		})
		table := newRouteTable(ads)
		for _, one := range all {
			table.add(one)
		}
		got := table.conflicts()
		if len(got) != 1 || got[single(v4)] != want {
			t.Fatalf("%q", got)
		}
	}
}
