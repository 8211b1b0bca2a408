package probe

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// probing is a page of node w1 that has the addresses of default/web, which a machine beside it has too.
func probing(t *testing.T, mac *lb.MAC, addresses ...string) *Page {
	t.Helper()
	self, other := nstest.Self(t), nstest.New(t)
	nstest.Veth(t, self, "eth0", other, "eth0")
	self.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
	other.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64", "fe80::2/64")
	*mac = lb.MACFrom(other.MAC("eth0"))
	other.Do(func() {
		listener, err := net.Listen("tcp", ":81")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
	})
	log := slog.New(slog.DiscardHandler)
	links := link.New(log, func() {})
	nstest.Running(t, links.Run)
	nstest.Until(t, 5*time.Second, "links", links.Synced)
	byAddress := map[netip.Addr]*[]lb.Frontend{}
	for _, text := range addresses {
		a := netip.MustParseAddr(text)
		byAddress[a] = new([]lb.Frontend)
		for port := range uint16(2) { // of which one is asked about
			*byAddress[a] = append(*byAddress[a], lb.Frontend{
				Address: a, Protocol: "TCP", Port: 80 + port, Service: lb.Key{Namespace: "default", Name: "web"},
			})
		}
	}
	var p plan.Plan
	p.Filter.Frontends = lb.MapOf(byAddress)
	return New(Config{
		Node:     "w1",
		Links:    links.Links,
		Layer2:   layer2.New(layer2.Config{Log: log, Links: links.Links}),
		Speakers: func() map[lb.MAC]string { return nil },
		Plan:     func() plan.Plan { return p },
	})
}

// post asks a new page, so that the pace of another question does not concern it.
func (p *Page) post(service string) (int, string) {
	out := httptest.NewRecorder()
	New(p.config).ServeHTTP(out, httptest.NewRequest(http.MethodPost, "/debug/probe?service="+service, nil))
	return out.Code, out.Body.String()
}

// TestProbe: the wire names who answers, of both families.
func TestProbe(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		other := lb.MAC{}
		w := probing(t, &other, "192.0.2.2", "2001:db8::2", "192.0.2.9")
		want := fmt.Sprintf(`{"Step":"wire at w1","Verdict":"problem","Text":"TCP port 80 of 192.0.2.2 refuses connections; `+
			`for 192.0.2.2 on link eth0 answers %s of no speaker; `+
			`for 192.0.2.9 on link eth0 answers no machine; for 2001:db8::2 on link eth0 answers %[1]s of no speaker",`+
			`"Details":["TCP port 80 of 192.0.2.2 refuses connections","TCP port 81 of 192.0.2.2 is open",`+
			`"TCP port 80 of 2001:db8::2 refuses connections","TCP port 81 of 2001:db8::2 is open"],`+
			`"Do":"Remove the address from the machine with that MAC, or take it out of the pool."}`+"\n", other)
		if code, body := w.post("default/web"); code != http.StatusOK || body != want {
			t.Errorf("%d %s", code, cmp.Diff(want, body))
		}
	})
}

// TestAskPorts: a silent port is a fault unless source ranges may be the cause, only TCP is asked, and not too many
// ports are.
func TestAskPorts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		mac := lb.MAC{}
		w := probing(t, &mac, "192.0.2.2")
		(*w.config.Plan().Filter.Frontends.Of(netip.MustParseAddr("192.0.2.2")))[0].Protocol = "UDP"
		step, knocks := w.askOwners(t.Context(), "default/web")
		if len(knocks) != 1 || knocks[0].Port != 81 || knocks[0].mac != mac {
			t.Fatalf("%+v", knocks)
		}
		open, closed, gone := knocks[0], knocks[0], knocks[0]
		closed.Port, gone.Port, gone.mac = 9, 10, lb.MAC{2}
		ranged := gone
		ranged.Restricted = true
		for _, tt := range []struct {
			ask     knock
			verdict string
			text    string
			do      string
		}{
			{open, "ok", "TCP port 81 of 192.0.2.2 is open", ""},
			{
				closed, "problem", "TCP port 9 of 192.0.2.2 refuses connections",
				"let a process in the pods listen on the target port of TCP port 9",
			},
			{gone, "problem", "TCP port 10 of 192.0.2.2 does not answer: a filter drops it, or nothing is there",
				"find what drops TCP port 10: a NetworkPolicy of the pods, chains of other programs"},
			{
				ranged, "ok",
				"TCP port 10 of 192.0.2.2 does not answer: a filter drops it, or nothing is there; " +
					"its source ranges may leave this node out",
				"",
			},
		} {
			step = probed{Verdict: "ok", Text: "for 192.0.2.2 answers"}
			w.askPorts(t.Context(), &step, []knock{tt.ask})
			isFirst := strings.HasPrefix(step.Text, tt.text+"; for") == (tt.verdict == "problem")
			differs := step.Verdict != tt.verdict || step.Details[0] != tt.text || !strings.HasPrefix(step.Do, tt.do) ||
				(step.Do == "") != (tt.do == "") || !isFirst
			if differs {
				t.Errorf("%+v", step)
			}
		}
		w.askPorts(t.Context(), &step, slices.Repeat([]knock{open}, maxKnocks+2))
		if n := len(step.Details); n != maxKnocks+1 || step.Details[n-1] != "2 more were not asked" {
			t.Errorf("%q", step.Details)
		}
	})
}

// TestNamed: one node with two links is one owner; two nodes, and a machine that is no speaker's, are a fault.
func TestNamed(t *testing.T) {
	a := lb.MAC{2, 1}
	b := lb.MAC{2, 2}
	c := lb.MAC{2, 3}
	foreign := lb.MAC{2, 4}
	nodes := map[lb.MAC]string{a: "node w1", b: "node w1", c: "node w2"}
	for _, tt := range []struct {
		macs []lb.MAC
		good bool
		text string
	}{
		{nil, false, "no machine"},
		{[]lb.MAC{a}, true, "02:01:00:00:00:00 of node w1"},
		{[]lb.MAC{a, b}, true, "02:01:00:00:00:00 of node w1 and 02:02:00:00:00:00 of node w1"},
		{[]lb.MAC{a, c}, false, "02:01:00:00:00:00 of node w1 and 02:03:00:00:00:00 of node w2"},
		{[]lb.MAC{a, foreign}, false, "02:01:00:00:00:00 of node w1 and 02:04:00:00:00:00 of no speaker"},
		{[]lb.MAC{foreign}, false, "02:04:00:00:00:00 of no speaker"},
	} {
		macs := map[lb.MAC]bool{}
		for _, mac := range tt.macs {
			macs[mac] = true
		}
		if text, good := named(macs, nodes); text != tt.text || good != tt.good {
			t.Errorf("%v: %q, %t", tt.macs, text, good)
		}
	}
}

// TestProbeRefuses: what this node does not serve is not asked about, whoever asks; and no two questions come within a
// second.
func TestProbeRefuses(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := probing(t, new(lb.MAC), "192.0.2.2", "198.51.100.1")
		for _, service := range []string{
			"", "/", "default", "default/other", "web", "192.0.2.2", "%00", "default%2Fweb%2F..",
		} {
			if code, body := w.post(service); code != http.StatusNotFound {
				t.Errorf("%q: %d %s", service, code, body)
			}
		}
		// of no subnet here
		if code, body := w.post("default/web"); code != http.StatusOK || strings.Contains(body, "198.51.100.1") {
			t.Errorf("%d %s", code, body)
		}
		page, start := New(w.config), time.Now()
		ask := func() int {
			out := httptest.NewRecorder()
			page.ServeHTTP(out, httptest.NewRequest(http.MethodPost, "/debug/probe", nil))
			return out.Code
		}
		if first, second := ask(), ask(); first != http.StatusNotFound || second != http.StatusTooManyRequests {
			t.Errorf("got %d and %d", first, second)
		}
		nstest.Until(t, 5*time.Second, "the next turn", func() bool { return ask() == http.StatusNotFound })
		if took := time.Since(start); took < probeInterval {
			t.Errorf("the next turn came after %v", took)
		}
	})
}
