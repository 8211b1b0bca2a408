package bfd

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// The process gets what is wanted when it is reached, and when that changes, and not more often.
func TestMonitorOrders(t *testing.T) {
	ours, theirs := net.Pipe()
	m := New(Config{Log: slog.New(slog.DiscardHandler), Changed: func() {}})
	m.Set([]Peer{good()})
	go m.Serve(ours)
	in := json.NewDecoder(theirs)
	ordered := func(want ...Peer) {
		t.Helper()
		var got []Peer
		if err := in.Decode(&got); err != nil || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("the order has %+v, %v; want %+v", got, err, want)
		}
	}
	ordered(good())
	other := good()
	other.Name, other.Address = "b", netip.MustParseAddr("2001:db8::1")
	go func() { // each waits until the one before is read
		m.Set([]Peer{good()})
		m.Set([]Peer{good(), other})
		m.Set(nil)
		theirs.Close()
	}()
	ordered(good(), other)
	ordered()
}

// Changes are passed on, counters are not; the end of the process is a change, after which nothing is known.
func TestMonitorNotices(t *testing.T) {
	changes := 0
	m := New(Config{Log: slog.New(slog.DiscardHandler), Changed: func() { changes++ }})
	tell := func(s ...Status) {
		t.Helper()
		m.notice(s)
	}
	s := Status{Name: "a", State: Down, Remote: Down}
	tell(s)
	for i, step := range []struct {
		change func()
		want   int
	}{
		{func() { s.State, s.Remote, s.Ups = Up, Up, 1 }, 2},
		{func() { s.Sent, s.Received = 10, 10 }, 2},
		{func() { s.Failures, s.Ups = 1, 2 }, 3}, // it fell and came up between two reports
		{func() { s.Remote = AdminDown }, 4},
		{func() { s.SwitchedOff = true }, 5}, // in between
		{func() { s.Error = "trouble" }, 6},
	} {
		step.change()
		if tell(s); changes != step.want {
			t.Errorf("step %d: %d changes, want %d", i, changes, step.want)
		}
	}
	s.Error = ""
	tell(s)
	const want = `
# HELP holdfast_bfd_failures_total Times that the BFD session fell; not counted if one of both sides was switched off.
# TYPE holdfast_bfd_failures_total counter
holdfast_bfd_failures_total{peer="a"} 1
# HELP holdfast_bfd_session_up 1 if the BFD session is up.
# TYPE holdfast_bfd_session_up gauge
holdfast_bfd_session_up{peer="a"} 1
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "holdfast_bfd_failures_total", "holdfast_bfd_session_up"); err != nil {
		t.Error(err)
	}
	before := changes
	m.notice(nil)
	if all := m.Statuses(); len(all) > 0 || changes != before+1 {
		t.Errorf("after the end of the process: %+v, %d changes", all, changes-before)
	}
	if n := testutil.CollectAndCount(m); n != 0 {
		t.Errorf("%d metrics of sessions of which nothing is known", n)
	}
}
