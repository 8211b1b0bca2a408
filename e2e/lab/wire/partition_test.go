package wire

import (
	"fmt"
	"strings"
	"testing"
)

func TestParsePartition(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"w1,w2 | w3"}, "[[w1 w2] [w3]]"},
		{[]string{"w1,w2", "|", "w3"}, "[[w1 w2] [w3]]"},
		{[]string{"w1, w2|w3|r1"}, "[[w1 w2] [w3] [r1]]"},
		{[]string{"w1"}, "[[w1]]"},
		{[]string{"w1 |"}, "error"},
		{[]string{"| w1"}, "error"},
		{[]string{" "}, "error"},
	} {
		groups, err := ParsePartition(tc.args)
		got := fmt.Sprint(groups)
		if err != nil {
			got = "error"
		}
		if got != tc.want {
			t.Errorf("%q: got %s, want %s", tc.args, got, tc.want)
		}
	}
}

func TestPartitionSides(t *testing.T) {
	p := NewPlan("cp", "w1", "w2")
	for _, tc := range []struct {
		groups [][]string
		want   string
	}{
		{[][]string{{"w1"}, {"w2", "cp"}}, "w1|w2,cp"},
		{[][]string{{"w1", "w2"}}, "w1,w2|cp,r1,r2,client,far"},
		{[][]string{{"w1"}, {"w1"}}, `host "w1" is named twice`},
		{[][]string{{"w9"}, {"w1"}}, `unknown host "w9"`},
		{nil, "no group"},
		{[][]string{p.Names()}, "the only group has all hosts"},
	} {
		sides, err := p.sides(tc.groups)
		var parts []string
		for _, s := range sides {
			parts = append(parts, strings.Join(s.Names(), ","))
		}
		got := strings.Join(parts, "|")
		if err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.groups, got, tc.want)
		}
	}
}

func TestPartitionRules(t *testing.T) {
	p := NewPlan("cp", "w1", "w2")
	sides, err := p.sides([][]string{{"w1"}, {"client", "r1"}})
	if err != nil {
		t.Fatal(err)
	}
	want := `table bridge lab_partition {
	chain forward {
		type filter hook forward priority 0; policy accept;
		iifname { "lan-w1", "fab-w1" } oifname { "lan-client", "fab-r1", "out-r1" } counter drop
		iifname { "lan-client", "fab-r1", "out-r1" } oifname { "lan-w1", "fab-w1" } counter drop
	}
}
`
	if got := partitionRules(sides); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestBlockRules(t *testing.T) {
	h, err := NewPlan("cp", "w1", "w2").Find("w1")
	if err != nil {
		t.Fatal(err)
	}
	want := `table bridge lab_block {
	chain forward {
		type filter hook forward priority 0; policy accept;
		iifname { "lan-w1", "fab-w1" } meta l4proto { tcp, udp } th dport { 7947, 7948 } counter drop
		iifname { "lan-w1", "fab-w1" } meta l4proto { tcp, udp } th sport { 7947, 7948 } counter drop
		oifname { "lan-w1", "fab-w1" } meta l4proto { tcp, udp } th dport { 7947, 7948 } counter drop
		oifname { "lan-w1", "fab-w1" } meta l4proto { tcp, udp } th sport { 7947, 7948 } counter drop
	}
}
`
	if got := blockRules(h, []uint16{7947, 7948}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
