package wire

import (
	"fmt"
	"testing"
)

func TestParseCut(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"w1,w2 > w3"}, "[w1 w2] [w3]"},
		{[]string{"w1", ">", "w2,w3"}, "[w1] [w2 w3]"},
		{[]string{"w1>w2"}, "[w1] [w2]"},
		{[]string{"w1", "w2"}, "error"},
		{[]string{"w1 >"}, "error"},
		{[]string{"> w1"}, "error"},
		{[]string{"w1 > w2 > w3"}, "error"},
	} {
		from, to, err := ParseCut(tc.args)
		got := fmt.Sprint(from, to)
		if err != nil {
			got = "error"
		}
		if got != tc.want {
			t.Errorf("%q: got %s, want %s", tc.args, got, tc.want)
		}
	}
}

func TestCutRules(t *testing.T) {
	p := NewPlan("cp", "w1", "w2")
	hosts, err := p.find([]string{"w1", "client"})
	if err != nil {
		t.Fatal(err)
	}
	want := `table bridge lab_cut {
	chain forward {
		type filter hook forward priority 0; policy accept;
		iifname { "lan-w1", "fab-w1" } oifname { "lan-client" } counter drop
	}
}
`
	if got := cutRules(hosts[:1], hosts[1:]); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestCutRefuses(t *testing.T) {
	p := NewPlan("cp", "w1")
	for _, tc := range []struct {
		link     string
		from, to []string
		want     string
	}{
		{"", []string{"w9"}, []string{"w1"}, `unknown host "w9"`},
		{"", []string{"w1"}, []string{"w1", "w1"}, `host "w1" is named twice`},
		{"eth7", []string{"w1"}, []string{"cp"}, `unknown link "eth7" of host w1`},
		{"", []string{"w1"}, nil, "cut: no host on one side"},
	} {
		if _, err := p.Cut(tc.link, tc.from, tc.to); err == nil || err.Error() != tc.want {
			t.Errorf("%+v: got %v", tc, err)
		}
	}
}
