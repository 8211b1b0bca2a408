package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// sample is a layout with a set of every kind and two rules.
func sample() *Layout {
	four := IPv4()
	return NewLayout(Table{Family: unix.NFPROTO_IPV4, Name: "sample"},
		[]Set{
			{Name: "plain", Key: Key{MAC}},
			{Name: "ranges", Key: Key{four.Address}, Flags: unix.NFT_SET_INTERVAL},
			{Name: "verdicts", Key: Key{four.Address, Protocol, Port}, Flags: unix.NFT_SET_MAP, Data: Verdict, Counter: true},
			{Name: "links", Key: Key{four.Address}, Flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT, Data: LinkIndex,
				Timeout: time.Hour},
		},
		[]Chain{
			{Name: "end", Rules: []Rule{Expr(&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})}},
			{Name: "base", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING,
				Rules: []Rule{Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP)}},
		})
}

// samples returns elements of the sample's sets.
func samples() []Element {
	return []Element{
		{"plain", "\x02\x00\x00\x00\x00\x01", ""},
		{"ranges", "\x0a\x00\x00\x01", "\x0a\x00\x00\x09"},
		{"ranges", "\xff\xff\xff\xf0", ""},
		{"verdicts", "\x0a\x00\x00\x01\x06\x00\x00\x00\x00\x50\x00\x00", Accepted},
		{"verdicts", "\x0a\x00\x00\x02\x06\x00\x00\x00\x00\x50\x00\x00", "end"},
		{"links", "\x0a\x00\x00\x01", string(Native(1))},
	}
}

// make builds the sample.
func (l *Layout) make(t *testing.T) {
	t.Helper()
	b := l.Batch()
	b.Remove()
	b.Create(0)
	l.Build(b)
	b.AddElements(l, samples())
	must(t, b.Commit())
}

// TestRead: a process reads the table that another process made, and detects each difference.
func TestRead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, l := nstest.Self(t), sample()
		if _, err := l.Read(); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("without a table: %v", err)
		}
		l.make(t)
		c, err := sample().Read()
		must(t, err)
		for _, m := range samples() {
			if !slices.Contains(c.Elements, m) {
				t.Errorf("%s has no %x: %x", m.Set, m.Key, m.Value)
			}
		}
		if len(c.Elements) != len(samples()) {
			t.Errorf("%d elements: %+v", len(c.Elements), c.Elements)
		}
		node.Output("nft", "add chain ip sample empty")
		c, err = l.Outline()
		must(t, err)
		if _, found := c.Chains["empty"]; !found {
			t.Errorf("%+v", c)
		}
		for chain, want := range map[string]bool{"base": true, "other": false} {
			if has, err := l.HasChain(chain); has != want || err != nil {
				t.Errorf("chain %s: %t, %v", chain, has, err)
			}
		}
		node.Output("nft", "add rule ip sample base counter jump empty; add rule ip sample end counter accept")
		for chain, want := range map[string]bool{"base": true, "end": false, "other": false} {
			if has, err := l.HasJump(chain, "empty"); has != want || err != nil {
				t.Errorf("from %s to empty: %t, %v", chain, has, err)
			}
		}
		if has, err := (Table{Family: unix.NFPROTO_IPV6, Name: "sample"}).HasJump("base", "empty"); has || err != nil {
			t.Errorf("in a table that does not exist: %t, %v", has, err)
		}
		for _, damage := range []string{
			"flush chain ip sample end", "add rule ip sample end drop", "flush chain ip sample end; add rule ip sample end drop",
			"delete set ip sample plain", "add table ip sample { flags dormant; }", "add chain ip sample base { policy drop; }",
		} {
			l.make(t)
			node.Output("nft", damage)
			if _, err := l.Read(); !errors.Is(err, ErrOther) {
				t.Errorf("after %s: %v", damage, err)
			}
		}
		later := NewLayout(l.Table, l.Sets, l.Chains, Chain{Name: "later"})
		l.make(t)
		if _, err := later.Read(); !errors.Is(err, ErrOther) {
			t.Errorf("a layout with other later chains: %v", err)
		}
		for range 2 {
			must(t, l.Delete())
		}
		if _, err := l.Handle(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after its deletion: %v", err)
		}
	})
}

// TestWatch: a watch reports the changes of other processes, and no other changes.
func TestWatch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, l := nstest.Self(t), sample()
		l.make(t)
		var own Conn
		changes := make(chan bool, 100)
		nstest.Running(t, func(ctx context.Context) error {
			l.watch(ctx, slog.New(slog.DiscardHandler), func() { changes <- true })
			return nil
		})
		<-changes // what was before is unknown
		b := l.Batch()
		b.FlushSet("plain")
		must(t, own.Commit(b))
		node.Output("nft", "add table ip other; add table inet sample")
		for _, damage := range []string{"add element ip sample plain { 02:00:00:00:00:02 }", "add rule ip sample end drop",
			"add table ip another; add rule ip sample end drop"} {
			if len(changes) > 0 {
				t.Error("a change that is none is reported before " + damage)
			}
			node.Output("nft", damage)
			<-changes
		}
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestRetryChanged: an interrupted listing starts again, a limited number of times.
func TestRetryChanged(t *testing.T) {
	other := errors.New("other")
	for _, tt := range []struct {
		results []error
		want    error
	}{
		{[]error{nil}, nil},
		{[]error{ErrChanged, ErrChanged, nil}, nil},
		{[]error{ErrChanged, other}, other},
		{slices.Repeat([]error{ErrChanged}, attempts), ErrChanged},
	} {
		n := 0
		got := retryChanged(func() error { n++; return tt.results[n-1] })
		if !errors.Is(got, tt.want) || n != len(tt.results) {
			t.Errorf("%v: %v after %d listings", tt.results, got, n)
		}
	}
}

// FuzzMessages: the kernel is trusted, but its messages may be of another version.
func FuzzMessages(f *testing.F) {
	l := sample()
	b := l.Batch()
	l.Build(b)
	b.AddElements(l, samples())
	for data := b.data; len(data) > 0; {
		size := binary.NativeEndian.Uint32(data)
		f.Add([]byte(data[:size]))
		data = data[size:]
	}
	f.Add(binary.NativeEndian.AppendUint32(nil, 16))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseReplies(data, false, func(a attributes) {
			for e := range a.find(unix.NFTA_SET_ELEM_LIST_ELEMENTS).each(unix.NFTA_LIST_ELEM) {
				decodeElement("", e)
			}
			(&Content{Chains: make(map[string]chainContent)}).readRule(a, l.comment())
		})
		var m netlink.Message
		if m.UnmarshalBinary(data) == nil {
			_ = l.concerns(m)
		}
	})
}

var must = nstest.Must
