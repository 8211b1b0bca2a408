package filter

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/binary"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// before is the transaction by which a speaker made the table of upgraded, when each frontend had its own copy of its lists.
// It is of a machine of little endian.
//
//go:embed testdata/before.batch.gz
var before []byte

func upgraded() Desired {
	four, six := tcp(vip4), tcp(vip6)
	four.Restricted, four.Allow, four.Deny = true, prefixes(client4+"/32", "203.0.113.0/24"), prefixes("203.0.113.0/28")
	six.Restricted, six.Allow, six.ConnectionLimit = true, prefixes(client6+"/128"), 1000
	return desired(four, six)
}

// makeBefore makes the table as that speaker did.
func makeBefore(t *testing.T) {
	t.Helper()
	compressed, err := gzip.NewReader(bytes.NewReader(before))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(compressed)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var messages []netlink.Message
	for len(data) > 0 {
		var m netlink.Message
		size := (binary.LittleEndian.Uint32(data) + 3) &^ 3
		if err := m.UnmarshalBinary(data[:size]); err != nil {
			t.Fatal(err)
		}
		messages, data = append(messages, m), data[size:]
	}
	messages[len(messages)-1].Header.Flags |= netlink.Acknowledge
	end := netlink.Message{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request}, Data: []byte{0, 0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	if _, err := conn.SendMessages(append(messages, end)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Receive(); err != nil {
		t.Fatal(err)
	}
}

// TestUpgrade: a speaker replaces the table of a predecessor of another version while packets flow. At no
// time a packet of another client gets through, and those of the clients that may come do.
func TestUpgrade(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the table is of a machine of little endian")
	}
	nstest.Run(t, func(t *testing.T) {
		const rounds = 25
		w := newWorld(t)
		survivors := w.survivors()
		out := w.sender()
		var last uint32
		flow := func(change func()) {
			t.Helper()
			var stop atomic.Bool
			var flood sync.WaitGroup
			first := last
			begun := make(chan bool)
			flood.Go(func() {
				// What is logged must fit into a buffer.
				for !stop.Load() && last < first+8000 || last < first+400 {
					for _, f := range [][2]string{{client4, vip4}, {stranger4, vip4}, {client6, vip6}, {stranger6, vip6}} {
						last++
						out(packet(addr(f[0]), addr(f[1]), "TCP", 80, last))
					}
					if last == first+40 {
						close(begun)
					}
				}
			})
			<-begun
			change()
			stop.Store(true)
			flood.Wait()
			last++
			out(packet(addr("198.18.0.1"), addr("203.0.113.255"), "UDP", 9, last))
			got := survivors(last)
			lost := 0
			for n := first + 1; n < last; n++ {
				switch admitted := (n-first)%2 == 1; {
				case !admitted && got[n]:
					t.Errorf("packet %d of %d of a client that may not come gets through", n-first, last-first)
				case admitted && !got[n]:
					lost++
				}
			}
			if lost > 2 { // those in flight between the two tables
				t.Errorf("%d of %d packets are lost", lost, (last-first)/2)
			}
			for (last % 4) != 0 {
				last++
			}
		}
		for range rounds {
			makeBefore(t)
			w.table = New(Config{Log: slog.New(slog.DiscardHandler)})
			flow(func() { w.set(upgraded()) })
			w.intact(w.table)
		}
	})
}
