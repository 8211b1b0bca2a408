package nft

import (
	"context"
	"encoding/binary"
	"errors"
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
			{Name: "links", Key: Key{four.Address}, Flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT, Data: LinkIndex, Timeout: time.Hour},
		},
		[]Chain{
			{Name: "end", Rules: []Rule{Expr(&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})}},
			{Name: "base", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Rules: []Rule{Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP)}},
		})
}

// samples are members of its sets.
func samples() []Member {
	return []Member{
		{"plain", Element{Key: "\x02\x00\x00\x00\x00\x01"}},
		{"ranges", Element{"\x0a\x00\x00\x01", "\x0a\x00\x00\x09"}},
		{"ranges", Element{"\xff\xff\xff\xf0", ""}},
		{"verdicts", Element{"\x0a\x00\x00\x01\x06\x00\x00\x00\x00\x50\x00\x00", Accepted}},
		{"verdicts", Element{"\x0a\x00\x00\x02\x06\x00\x00\x00\x00\x50\x00\x00", "end"}},
		{"links", Element{"\x0a\x00\x00\x01", string(Native(1))}},
	}
}

// make builds the sample.
func (l *Layout) make(t *testing.T) {
	t.Helper()
	b := l.Batch()
	b.Remove()
	b.Create()
	l.Build(b)
	b.AddMembers(l, samples())
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

// What one process makes, the next one reads as it was made, and takes nothing else for it.
func TestRead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, l := nstest.Self(t), sample()
		if _, err := l.Read(false); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("there is nothing yet: %v", err)
		}
		l.make(t)
		c, err := sample().Read(true)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range samples() {
			if !slices.Contains(c.Members, m) {
				t.Errorf("%s has no %x: %x", m.Set, m.Key, m.Value)
			}
		}
		if len(c.Members) != len(samples()) {
			t.Errorf("%d members: %+v", len(c.Members), c.Members)
		}
		node.Output("nft", "add chain ip sample empty")
		for _, all := range []bool{false, true} {
			if c, err := l.Outline(all); err != nil || (c.Chains["empty"] != nil) != all {
				t.Errorf("of all %v: %v, %+v", all, err, c.Chains)
			}
		}
		if !l.HasChain("base") || l.HasChain("other") {
			t.Error("a chain is there that is not, or the reverse")
		}
		for _, damage := range []string{
			"flush chain ip sample end", "add rule ip sample end drop", "flush chain ip sample end; add rule ip sample end drop",
			"delete set ip sample plain",
		} {
			l.make(t)
			node.Output("nft", damage)
			if _, err := l.Read(false); !errors.Is(err, ErrOther) {
				t.Errorf("after %s: %v", damage, err)
			}
		}
		later := NewLayout(l.Table, l.Sets, l.Chains, Chain{Name: "later"})
		l.make(t)
		if _, err := later.Read(true); !errors.Is(err, ErrOther) {
			t.Errorf("a layout that will have other chains: %v", err)
		}
		for range 2 {
			b := l.Batch()
			b.Remove()
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := l.Handle(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after it was removed: %v", err)
		}
	})
}

// Changes that others make are told of, and no others.
func TestWatch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, l := nstest.Self(t), sample()
		l.make(t)
		var own Conn
		changes := make(chan Change, 100)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Watch(ctx, &own, func(c Change) { changes <- c }) }()
		if c := <-changes; c != Missed {
			t.Errorf("what happened before is %v", c)
		}
		b := l.Batch()
		b.FlushSet("plain")
		if err := own.Commit(b); err != nil {
			t.Fatal(err)
		}
		node.Output("nft", "add table ip other; add table inet sample")
		node.Output("nft", "add element ip sample plain { 02:00:00:00:00:02 }")
		if c := <-changes; c != Members {
			t.Errorf("a member is %v", c)
		}
		node.Output("nft", "add rule ip sample end drop")
		if c := <-changes; c != Rules {
			t.Errorf("a rule is %v", c)
		}
		stop()
		if err := errors.Join(<-done, own.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A listing that is interrupted is begun again, but not for ever.
func TestSettled(t *testing.T) {
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
		got := settled(func() error { n++; return tt.results[n-1] })
		if !errors.Is(got, tt.want) || n != len(tt.results) {
			t.Errorf("%v: %v after %d listings", tt.results, got, n)
		}
	}
}

// The kernel is trusted, but a message of it may be of another version.
func FuzzMessages(f *testing.F) {
	l := sample()
	b := l.Batch()
	l.Build(b)
	b.AddMembers(l, samples())
	for data := b.data; len(data) > 0; {
		size := binary.NativeEndian.Uint32(data)
		f.Add([]byte(data[:size]))
		data = data[size:]
	}
	f.Add(binary.NativeEndian.AppendUint32(nil, 16))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = split(data, false, func(a attributes) {
			for e := range a.find(unix.NFTA_SET_ELEM_LIST_ELEMENTS).each(unix.NFTA_LIST_ELEM) {
				decodeElement(e)
			}
			(&Content{Chains: make(map[string]*Found)}).readRule(a, l.comment())
		})
		var m netlink.Message
		if m.UnmarshalBinary(data) == nil {
			_, _ = l.changeBy(m)
		}
	})
}
