package lab

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
	l := &Lab{Plan: plan(Config{Workers: 2})}
	hosts, err := l.find([]string{"w1", "client"})
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
