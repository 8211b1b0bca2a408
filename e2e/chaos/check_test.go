package chaos

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	address  = netip.MustParseAddr("192.0.2.10")
	constant = netip.MustParseAddr("192.0.2.1")
	nodes    = []string{"w1", "w2", "w3"}
	links    = []string{"eth0", "eth1"}
)

// second makes a time of seconds.
func second(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// tenure is a time in which a node answers for the address.
type tenure struct {
	node     string
	from, to float64
}

// run is a made-up run: faults, with a recovery that takes no time, and what listeners would record.
type run struct {
	faults  []Fault
	tenures []tenure
	// deaf is when the listener hears nothing at all.
	deaf []tenure
	// edit changes the record.
	edit func(Record) Record
}

// runEnd is the end of each made-up run, in seconds.
const runEnd = 120

func (c run) record() (Schedule, Record) {
	s := Schedule{Nodes: nodes, Links: links, Faults: c.faults}
	r := Record{
		{What: Target, By: "client", Address: address, Service: "a"},
		{What: Control, By: "client", Address: constant},
		{What: Stop, At: second(runEnd)},
	}
	for _, n := range nodes {
		for _, l := range links {
			r = append(r, Entry{What: Host, Node: n, Link: l, MAC: n + "-" + l})
		}
	}
	for i, f := range c.faults {
		for at, marks := range map[time.Duration][]What{f.Start: {Begins, Began}, f.end(): {Ended, Ready}} {
			for _, w := range marks {
				r = append(r, Entry{At: at, What: w, Fault: i})
			}
		}
	}
	for i := range runEnd * 20 {
		at := float64(i) / 20
		in := func(t tenure) bool { return t.from <= at && at <= t.to }
		r = append(r, Entry{At: second(at), What: Fetch, By: "client", Address: address, Node: "w1"})
		r = append(r, Entry{At: second(at), What: Service, Service: "a", Addresses: []netip.Addr{address}})
		if slices.ContainsFunc(c.deaf, in) {
			continue
		}
		r = append(r, Entry{At: second(at), What: Answer, By: "client", Address: constant, MAC: "other"})
		for _, t := range c.tenures {
			if in(t) {
				mac := t.node + "-eth0"
				r = append(r, Entry{At: second(at), What: Answer, By: "client", Address: address, MAC: mac})
			}
		}
	}
	if c.edit != nil {
		r = c.edit(r)
	}
	return s, r
}

// at places a fault between two times in seconds.
func at(f Fault, from, to float64) Fault {
	f.Start, f.Duration = second(from), second(to-from)
	return f
}

// without removes entries.
func without(unwanted func(Entry) bool) func(Record) Record {
	return func(r Record) Record { return slices.DeleteFunc(r, unwanted) }
}

// change edits entries of a kind after a time in seconds.
func change(what What, after float64, edit func(*Entry)) func(Record) Record {
	return func(r Record) Record {
		for i := range r {
			if r[i].What == what && r[i].At > second(after) {
				edit(&r[i])
			}
		}
		return r
	}
}

func TestCheck(t *testing.T) {
	power := func(node string) Fault { return Fault{Kind: Power, Node: node} }
	dead := func(node, link string) Fault { return Fault{Kind: Loss, Node: node, Link: link, In: 100, Out: 100} }
	cable := Fault{Kind: Cut, Node: "w1", Link: "eth1"}
	isolated := Fault{Kind: Isolate, Link: "eth0"}
	always := []tenure{{"w1", 0, 120}}
	for name, tc := range map[string]struct {
		run
		// want are the beginnings of the violations.
		want []string
	}{
		"nothing happens": {run: run{tenures: always}},

		"answers are 3 s late": {run: run{tenures: []tenure{{"w1", 0, 20}, {"w1", 22.9, 120}}}},
		"no owner": {
			run{tenures: []tenure{{"w1", 0, 20}, {"w1", 23.2, 120}}},
			[]string{"no owner of 192.0.2.10, 20s to 23.2s: no answer for 3.2s while w1 works, at most 3s"},
		},
		"no owner in the beginning": {
			run{tenures: []tenure{{"w1", 4, 120}}}, []string{"no owner of 192.0.2.10, 0s to 4s"},
		},
		"no owner in the end": {
			run{tenures: []tenure{{"w1", 0, 110}}}, []string{"no owner of 192.0.2.10, 1m50s to 2m0s"},
		},
		"never an owner": {
			run{},
			[]string{"no owner of 192.0.2.10, 0s to 2m0s", "unsettled of 192.0.2.10, 40s to 45s: no node answers"},
		},
		"power-off, 450 ms": {run: run{
			faults: []Fault{at(power("w1"), 20, 30)}, tenures: []tenure{{"w1", 0, 20}, {"w2", 20.45, 120}},
		}},
		"power-off, 550 ms": {
			run{faults: []Fault{at(power("w1"), 20, 30)}, tenures: []tenure{{"w1", 0, 20}, {"w2", 20.55, 120}}},
			[]string{"no owner of 192.0.2.10, 20s to 20.55s: no answer for 550ms while w2 works, at most 500ms; " +
				"faults: #0 power w1, 20s to 30s"},
		},
		"cable, 550 ms": {
			run{faults: []Fault{at(cable, 20, 30)}, tenures: []tenure{{"w1", 0, 20}, {"w2", 20.55, 120}}},
			[]string{"no owner"},
		},
		"power-off of another node": {run: run{
			faults: []Fault{at(power("w3"), 20, 30)}, tenures: []tenure{{"w1", 0, 20}, {"w2", 20.55, 120}},
		}},
		"a pause after the return": {run: run{
			faults: []Fault{at(power("w1"), 20, 30)}, tenures: []tenure{{"w1", 0, 60}, {"w1", 60.55, 120}},
		}},
		"power-off beside a loss": {run: run{
			faults:  []Fault{at(power("w1"), 20, 30), at(dead("w3", "eth0"), 15, 25)},
			tenures: []tenure{{"w1", 0, 20}, {"w2", 22, 120}},
		}},
		"dead port, 2.9 s": {run: run{
			faults: []Fault{at(dead("w1", "eth1"), 20, 30)}, tenures: []tenure{{"w1", 0, 20}, {"w2", 22.9, 120}},
		}},
		"dead port, 3.1 s": {
			run{faults: []Fault{at(dead("w1", "eth1"), 20, 30)}, tenures: []tenure{{"w1", 0, 20}, {"w2", 23.1, 120}}},
			[]string{"no owner of 192.0.2.10, 20s to 23.1s"},
		},
		"no node works": {run: run{
			faults:  []Fault{at(power("w1"), 20, 30), at(power("w2"), 20, 30), at(dead("w3", "eth1"), 20, 30)},
			tenures: []tenure{{"w1", 0, 20}, {"w1", 37, 120}},
		}},
		"no node works, then one does": {
			run{
				faults:  []Fault{at(power("w1"), 20, 50), at(power("w2"), 20, 50), at(dead("w3", "eth1"), 20, 30)},
				tenures: []tenure{{"w1", 0, 20}, {"w1", 39, 120}},
			},
			[]string{"no owner of 192.0.2.10, 35s to 39s: no answer for 4s while w3 works"},
		},
		"a link of all nodes is broken": {run: run{
			faults: []Fault{at(isolated, 20, 30)}, tenures: []tenure{{"w1", 0, 20}, {"w1", 30, 120}},
		}},
		"no API server": {
			run{faults: []Fault{at(Fault{Kind: API}, 20, 30)}, tenures: []tenure{{"w1", 0, 20}, {"w1", 30, 120}}},
			[]string{"no owner of 192.0.2.10, 20s to 30s"},
		},
		"the listener is deaf": {run: run{tenures: always, deaf: []tenure{{"", 20, 29}}}},
		"the listener is deaf for a part": {
			run{tenures: []tenure{{"w1", 0, 20}, {"w1", 27, 120}}, deaf: []tenure{{"", 21, 23}}},
			[]string{"no owner of 192.0.2.10, 23.05s to 27s"},
		},

		"two owners, 1.9 s": {run: run{tenures: []tenure{{"w1", 0, 21.9}, {"w2", 20, 120}}}},
		"two owners, 2.1 s": {
			run{tenures: []tenure{{"w1", 0, 22.1}, {"w2", 20, 120}}},
			[]string{"two owners of 192.0.2.10, 20s to 22.1s: w1 and w2 answer for 2.1s, at most 2s"},
		},
		"two answer alternately": {
			run{tenures: []tenure{
				{"w1", 0, 20}, {"w2", 20.5, 20.6}, {"w1", 21, 21.1}, {"w2", 21.5, 21.6}, {"w1", 22, 22.1},
				{"w2", 22.5, 22.6}, {"w1", 23, 120},
			}},
			[]string{"two owners of 192.0.2.10, 20.5s to 22.6s"},
		},
		"another machine answers": {
			run{tenures: append(always, tenure{"stranger", 20, 23})},
			[]string{"two owners of 192.0.2.10, 20s to 23s: stranger-eth0 and w1 answer"},
		},
		"two owners hear each other on the other link": {
			run{faults: []Fault{at(dead("w1", "eth0"), 20, 30)}, tenures: []tenure{{"w1", 0, 30}, {"w2", 20, 120}}},
			[]string{"two owners of 192.0.2.10, 20s to 30s"},
		},
		"two owners hear each other without the API server": {
			run{faults: []Fault{at(Fault{Kind: API}, 20, 30)}, tenures: []tenure{{"w1", 0, 30}, {"w2", 20, 120}}},
			[]string{"two owners of 192.0.2.10, 20s to 30s"},
		},
		"two owners are apart": {run: run{
			faults:  []Fault{at(dead("w1", "eth0"), 20, 30), at(dead("w2", "eth1"), 20, 30)},
			tenures: []tenure{{"w1", 0, 32.9}, {"w2", 20, 120}},
		}},
		"two owners were apart": {
			run{
				faults:  []Fault{at(dead("w1", "eth0"), 20, 30), at(dead("w2", "eth1"), 20, 30)},
				tenures: []tenure{{"w1", 0, 33.1}, {"w2", 20, 120}},
			},
			[]string{"two owners of 192.0.2.10, 31s to 33.1s"},
		},
		"an owner is frozen": {run: run{
			faults:  []Fault{at(Fault{Kind: Freeze, Node: "w1"}, 20, 30)},
			tenures: []tenure{{"w1", 0, 32}, {"w2", 20.1, 120}},
		}},

		"a handover in the final time": {run: run{tenures: []tenure{{"w1", 0, 42.4}, {"w2", 42, 120}}}},
		"two owners in the final time": {
			run{tenures: []tenure{{"w1", 0, 42.6}, {"w2", 42, 120}}},
			[]string{"unsettled of 192.0.2.10, 40s to 45s: w1 and w2 answer"},
		},
		"no owner 40 s after the last fault": {
			run{
				faults:  []Fault{at(power("w1"), 20, 30)},
				tenures: []tenure{{"w1", 0, 20}, {"w2", 20.1, 69}, {"w2", 75.5, 120}},
			},
			[]string{
				"no owner of 192.0.2.10, 1m9s to 1m15.5s", "unsettled of 192.0.2.10, 1m10s to 1m15s: no node answers",
			},
		},
		"not served in the end": {
			run{tenures: always, edit: change(Fetch, 39, func(e *Entry) { e.Error = "no answer in time" })},
			[]string{"unsettled of 192.0.2.10, 40s to 45s: it is not served"},
		},

		"renumbered": {
			run{tenures: always, edit: change(Service, 60, func(e *Entry) { e.Addresses = []netip.Addr{constant} })},
			[]string{"renumbered, 1m0.05s to 1m0.05s: Service a has [192.0.2.1] and had [192.0.2.10]"},
		},
		"an address is lost for a moment": {
			run{tenures: always, edit: func(r Record) Record {
				return append(r, Entry{At: second(50), What: Service, Service: "a"})
			}},
			[]string{"renumbered, 50s to 50s: Service a has [] and had [192.0.2.10]"},
		},

		"nothing was asked": {
			run{edit: func(Record) Record { return Record{{What: Stop, At: second(100)}} }},
			[]string{"incomplete, 0s to 1m40s: no address was asked for"},
		},
		"the record ends early": {
			run{tenures: always, edit: change(Stop, 0, func(e *Entry) { e.At = second(44) })},
			[]string{"incomplete, 0s to 44s: it ends at 44s, before 45s"},
		},
		"a fault never ended": {
			run{
				faults: []Fault{at(power("w3"), 20, 30)}, tenures: always,
				edit: without(func(e Entry) bool { return e.What == Ready }),
			},
			[]string{
				"incomplete, 0s to 2m0s: it ends at 2m0s, before 2m45s",
				"incomplete, 0s to 2m0s: #0 power w3, 20s to 2m0s did not begin, end and recover",
				"incomplete, 0s to 2m0s: the addresses of Service a were not read to the end", "unsettled",
			},
		},
		"no control": {
			run{tenures: always, edit: without(func(e Entry) bool { return e.Address == constant })},
			[]string{"incomplete, 0s to 2m0s: client did not hear its control address"},
		},
		"no fetch": {
			run{tenures: always, edit: without(func(e Entry) bool { return e.What == Fetch })},
			[]string{"incomplete, 0s to 2m0s: 192.0.2.10 was never fetched", "unsettled"},
		},
		"Services were not read": {
			run{tenures: always, edit: without(func(e Entry) bool { return e.What == Service && e.At > second(39) })},
			[]string{"incomplete, 0s to 2m0s: the addresses of Service a were not read to the end"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Check(tc.record())
			for i, v := range got {
				if i >= len(tc.want) || !strings.HasPrefix(v.String(), tc.want[i]) {
					t.Errorf("got violation %s", v)
				}
			}
			if len(got) != len(tc.want) {
				t.Errorf("got %d violations, want %q", len(got), tc.want)
			}
		})
	}
}

func TestSummary(t *testing.T) {
	got := Summary(run{
		faults:  []Fault{at(Fault{Kind: Cut, Node: "w1", Link: "eth1"}, 20, 30), at(Fault{Kind: API}, 50, 60)},
		tenures: []tenure{{"w1", 0, 20}, {"w2", 20.4, 40}, {"w1", 40, 120}},
		deaf:    []tenure{{"", 70, 71}},
		edit: func(r Record) Record {
			return append(r, Entry{At: second(25), What: Fetch, Address: address, Error: "lost"},
				Entry{At: second(100), What: Fetch, Address: address, Error: "lost"})
		},
	}.record())
	want := `2 faults in 2m0s: 1 api, 1 cut eth1
192.0.2.10 of a: 2 of 2402 fetches failed, 1 of them without a fault; longest pause of answers 1.1s; 2 moves
client was deaf 1 times, at most for 1.1s
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
