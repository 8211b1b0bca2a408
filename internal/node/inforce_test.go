package node

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/divert"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/report"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestTablesInForce: the metric is what the kernel does.
func TestTablesInForce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newTestLoop(func() []lb.Interface { return nil })
		w.stops.hang = &hang{}
		expect := func(when, filter, headstart, proxy string) {
			t.Helper()
			want := "# HELP holdfast_table_in_force 1 while the kernel table of this kind (filter, headstart or " +
				"proxy) is as the last plan asks; 0 too if it is switched off.\n# TYPE holdfast_table_in_force gauge\n" +
				"holdfast_table_in_force{kind=\"filter\"} " + filter +
				"\nholdfast_table_in_force{kind=\"headstart\"} " + headstart +
				"\nholdfast_table_in_force{kind=\"proxy\"} " + proxy + "\n"
			shown := &report.Metrics{
				Standing: w.Standing, Layer2: w.sinks.Layer2, Sessions: w.sinks.BGP.Sessions, Tables: w.Tables,
				ProxyRepairs: w.sinks.Divert.Repairs, Hangs: w.Hangs,
				APIAge: func() (time.Duration, bool) { return 0, false },
			}
			err := testutil.CollectAndCompare(shown, strings.NewReader(want), "holdfast_table_in_force")
			if err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		set := func() {
			t.Helper()
			links := []lb.Interface{{Name: "eth0"}}
			must(t, w.sinks.Filter.set(plan.Plan{}, lb.SetOf[netip.Addr](), lb.Node{Name: "w1"}, links))
		}
		expect("before the first plan", "0", "0", "0")
		w.sinks.HeadStart.Set(nil)
		expect("the head start only", "0", "1", "0")
		set()
		w.sinks.Divert.Set(divert.Desired{})
		expect("all", "1", "1", "1")
		w.sinks.Filter.on = false
		set()
		expect("the filter is off", "0", "1", "1")
	})
}
