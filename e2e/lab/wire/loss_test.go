package wire

import (
	"testing"
	"time"
)

func TestLossRules(t *testing.T) {
	h, err := NewPlan("cp", "w1", "w2").Find("w1")
	if err != nil {
		t.Fatal(err)
	}
	fabric, err := h.only("eth1")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		h     Host
		loss  Loss
		rules string
	}{
		{"inbound", h, Loss{In: 90}, `	chain forward {
		type filter hook forward priority 0; policy accept;
		oifname { "lan-w1", "fab-w1" } numgen random mod 100 < 90 counter drop
	}
`},
		{"both ways, all outbound", h, Loss{In: 50, Out: 100}, `	chain forward {
		type filter hook forward priority 0; policy accept;
		oifname { "lan-w1", "fab-w1" } numgen random mod 100 < 50 counter drop
		iifname { "lan-w1", "fab-w1" } counter drop
	}
`},
		{"one link", fabric, Loss{In: 100, Out: 100}, `	chain forward {
		type filter hook forward priority 0; policy accept;
		oifname { "fab-w1" } counter drop
		iifname { "fab-w1" } counter drop
	}
`},
		{"UDP only", h, Loss{In: 99, UDP: true}, `	chain forward {
		type filter hook forward priority 0; policy accept;
		oifname { "lan-w1", "fab-w1" } meta l4proto udp numgen random mod 100 < 99 counter drop
	}
`},
		{"bursts", h, Loss{Out: 100, Burst: 500 * time.Millisecond,
			Pause: time.Second}, `	set period { type mark; size 16; flags dynamic, timeout; }
	set burst { type mark; size 16; flags dynamic, timeout; }
	chain forward {
		type filter hook forward priority 0; policy accept;
		meta mark != @period add @period { meta mark timeout 1500ms } add @burst { meta mark timeout 500ms }
		iifname { "lan-w1", "fab-w1" } meta mark @burst counter drop
	}
`},
	} {
		want := "table bridge lab_loss {\n" + tc.rules + "}\n"
		if got := lossRules(tc.h, tc.loss); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", tc.name, got, want)
		}
	}
}

func TestLossValidate(t *testing.T) {
	const second = time.Second
	for _, tc := range []struct {
		loss Loss
		ok   bool
	}{
		{Loss{In: 1}, true},
		{Loss{Out: 100, UDP: true}, true},
		{Loss{In: 100, Burst: second, Pause: second}, true},
		{Loss{}, false},
		{Loss{In: 101}, false},
		{Loss{Out: -1, In: 5}, false},
		{Loss{In: 50, Burst: second}, false},
		{Loss{In: 50, Pause: second}, false},
		{Loss{In: 50, Burst: -second, Pause: second}, false},
		{Loss{In: 50, Burst: time.Microsecond, Pause: second}, false},
	} {
		if err := tc.loss.validate(); (err == nil) != tc.ok {
			t.Errorf("%+v: error %v, want ok %v", tc.loss, err, tc.ok)
		}
	}
}

func TestLossRefuses(t *testing.T) {
	p := NewPlan("cp", "w1")
	for _, tc := range []struct {
		host string
		loss Loss
		want string
	}{
		{"w9", Loss{In: 90}, `unknown host "w9"`},
		{"w1", Loss{In: 90, Link: "eth7"}, `unknown link "eth7" of host w1`},
		{"w1", Loss{}, "loss in neither direction"},
	} {
		if _, err := p.Lose(tc.host, tc.loss); err == nil || err.Error() != tc.want {
			t.Errorf("%s, %+v: got %v, want %s", tc.host, tc.loss, err, tc.want)
		}
	}
}

func TestParseBurst(t *testing.T) {
	burst, pause, err := ParseBurst("500ms/1s")
	if err != nil || burst != 500*time.Millisecond || pause != time.Second {
		t.Errorf("got %s, %s, %v", burst, pause, err)
	}
	for _, text := range []string{"", "500ms", "500ms/", "/1s", "500/500", "1s/1s/1s"} {
		if _, _, err := ParseBurst(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
