package probe

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

// series turns a drawing into results, one sign for every 5 ms: + is a good probe, - a failed
// one, a dot none.
func series(drawing string) []Result {
	var out []Result
	for i, sign := range drawing {
		if sign != '.' {
			out = append(out, Result{Start: at(5 * i), OK: sign == '+'})
		}
	}
	return out
}

func TestOutages(t *testing.T) {
	for name, tc := range map[string]struct {
		drawing string
		want    []Outage
	}{
		"nothing asked":      {"", nil},
		"all good":           {"++++", nil},
		"late but good":      {"+....+", nil},
		"one":                {"++---++", []Outage{{at(5), at(25), 3, true}}},
		"two":                {"+-+--+", []Outage{{at(0), at(10), 1, true}, {at(10), at(25), 2, true}}},
		"a late start in it": {"+-...-.+", []Outage{{at(0), at(35), 2, true}}},
		"never back":         {"+---", []Outage{{at(0), at(15), 3, false}}},
		"bad from the start": {"--+", []Outage{{at(0), at(10), 2, true}}},
		"never good":         {"---", []Outage{{at(0), at(10), 3, false}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Outages(series(tc.drawing))); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestOutagesOrder(t *testing.T) {
	// Failed probes end last, since they wait for their timeout.
	results := series("+--+")
	results[1], results[3] = results[3], results[1]
	want := []Outage{{at(0), at(15), 2, true}}
	if diff := cmp.Diff(want, Outages(results)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestLongest(t *testing.T) {
	if _, ok := Longest(nil); ok {
		t.Error("no outage has no longest one")
	}
	got, ok := Longest(Outages(series("+-+--++-+")))
	if want := (Outage{at(10), at(25), 2, true}); !ok || got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
