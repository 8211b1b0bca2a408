package filter

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// full is a filter of every kind.
func full() draft {
	restricted := tcp(vip4)
	restricted.Restricted = true
	restricted.Allow = prefixes(client4+"/32", "203.0.113.0/24")
	restricted.Deny = prefixes("203.0.113.0/28")
	restricted.ClusterIP, restricted.LogDrops = addr(cluster4), true
	six := tcp(vip6)
	six.Restricted = true
	six.Allow = prefixes(client6 + "/128")
	six.ConnectionLimit = 1000
	six.RateLimit = 1000
	refuse := tcp(vip4)
	refuse.Port, refuse.Refuse = 81, true
	d := desired(restricted, refuse, six)
	d.PodLinks = []string{"pod*"}
	d.Pings = []netip.Addr{addr(vip4), addr(vip6)}
	return d
}

// TestRepair: parts of the table that another program removes are restored and counted.
func TestRepair(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(full())
		number := fmt.Sprint((*w.table.owned.Actual().frontends.Of(addr(vip4)))[0].allow.number)
		nstest.Running(t, w.table.Run)
		for _, damage := range [][]string{
			{"flush", "ruleset"},
			{"delete", "table", "inet", tableName},
			{"flush", "table", "inet", tableName},
			{"flush", "chain", "inet", tableName, "guard4"},
			{"flush", "set", "inet", tableName, "guarded4"},
			{"delete", "element", "inet", tableName, "sources4", "{ " + client4 + " . 32 . " + number + " }"},
			{"add", "element", "inet", tableName, "sources4", "{ 10.0.0.0 . 8 . " + number + " }"},
			{"delete", "element", "inet", tableName, "allow4", "{ " + vip4 + " . tcp . 80 }"},
			{"add", "element", "inet", tableName, "allow4", "{ " + closedVIP4 + " . tcp . 80 : " + number + " }"},
			{"add", "rule", "inet", tableName, "guard4", "accept"},
			{"add", "chain", "inet", tableName, "strange"},
		} {
			before := w.table.owned.Repairs()
			begin := time.Now()
			w.node.Output("nft", damage...)
			nstest.Until(t, patient, "the table is back after "+strings.Join(damage, " "), func() bool {
				return w.table.owned.Repairs() > before
			})
			t.Logf("%s: repaired within %v", strings.Join(damage, " "), time.Since(begin))
			w.intact(w.table)
			if ok, _ := w.table.Enforced(); !ok {
				t.Error("not enforced")
			}
		}
		// A change of ours is no damage.
		before := w.table.owned.Repairs()
		w.set(desired())
		w.set(full())
		w.node.Output("nft", "add", "table", "inet", "other")
		if after := w.table.owned.Repairs(); after != before {
			t.Errorf("%d repairs of what was not broken", after-before)
		}
	})
}

// intact fails the test unless the kernel holds what a table takes it to hold, and nothing is left over.
func (w *world) intact(table *Table) {
	w.t.Helper()
	if table.owned.Audit() {
		w.t.Error("the table is not what it should be")
	}
}

// sent counts the transactions from now on.
func (w *world) sent() *int {
	n, transact := new(int), w.table.owned.Transact
	w.table.owned.Transact = func(b *nft.Batch) error {
		*n++
		return transact(b)
	}
	return n
}

// TestTakeOver: a process that follows another keeps a table that holds what it wants, with what was counted, and
// replaces any other in one go.
func TestTakeOver(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		w.set(full())
		w.finds(answer, w.client, "tcp", client4, vip4, 80)
		_, counted, err := w.table.readCounters()
		if err != nil || len(counted) != 1 || counted[tcp(vip4).Service] == 0 {
			t.Fatalf("nothing was counted: %v, %v", counted, err)
		}
		w.table = New(testLog(t), func() {})
		sent := w.sent()
		w.set(full())
		_, again, err := w.table.readCounters()
		if *sent != 0 || err != nil || len(again) != 1 || again[tcp(vip4).Service] < counted[tcp(vip4).Service] {
			t.Errorf("%d transactions; what was counted is lost: %v, want %v (%v)", *sent, again, counted, err)
		}
		next := full()
		next.Frontends[1] = tcp(closedVIP4)
		next.Frontends[0].ClusterIP = netip.Addr{}
		w.table = New(testLog(t), func() {})
		w.set(next)
		w.intact(w.table)
		if got := w.list("table", "inet", tableName); strings.Contains(got, "chain internal") {
			t.Errorf("rules of another layout stay:\n%s", got)
		}
	})
}

// TestKillAndRemove: a killed process leaves the filter in force; Remove takes it away and nothing else.
func TestKillAndRemove(t *testing.T) {
	if os.Getenv("HOLDFAST_FILTER_VICTIM") != "" {
		must(t, New(slog.New(slog.DiscardHandler), func() {}).Set(full().desired()))
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	}
	serving(t, func(t *testing.T, w *world) {
		foreign := foreignTables(w)
		victim := exec.Command("/proc/self/exe", "-test.run=^TestKillAndRemove$")
		victim.Env = append(os.Environ(), "HOLDFAST_FILTER_VICTIM=1")
		if out, err := victim.CombinedOutput(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the victim was not killed: %v\n%s", err, out)
		}
		w.finds(silence, w.client, "tcp", stranger4, vip4, 80)
		w.finds(answer, w.client, "tcp", client4, vip4, 80)
		if got := w.others(); got != foreign {
			t.Errorf("tables of others: got\n%s\nwant\n%s", got, foreign)
		}
		for range 2 {
			must(t, w.table.Remove())
			if tables := w.node.Output("nft", "list", "tables"); strings.Contains(tables, tableName) {
				t.Errorf("the table is there still: %s", tables)
			}
		}
		if got := w.others(); got != foreign {
			t.Errorf("tables of others: got\n%s\nwant\n%s", got, foreign)
		}
		w.finds(answer, w.client, "tcp", stranger4, vip4, 80)
	})
}

// foreignTables makes tables as Calico and firewalld have them, at priorities beside ours, and lists them.
func foreignTables(w *world) string {
	w.nft(`
table inet firewalld {
	chain mangle_PREROUTING { type filter hook prerouting priority -140; policy accept; jump zone
	}
	chain nat_PREROUTING { type nat hook prerouting priority -90; policy accept; jump zone
	}
	chain filter_FORWARD { type filter hook forward priority 10; policy accept; ct state { established, related } accept
	}
	chain zone { counter
	}
}
table ip calico {
	chain raw-PREROUTING { type filter hook prerouting priority -300; policy accept; meta mark set meta mark and 0x0000ffff
	}
	chain mangle-PREROUTING { type filter hook prerouting priority -150; policy accept; ct state related,established accept
	}
	chain nat-PREROUTING { type nat hook prerouting priority -100; policy accept; counter
	}
	set hosts { type ipv4_addr; elements = { 192.0.2.7 }
	}
}`)
	return w.others()
}

// others lists the tables that are not ours.
func (w *world) others() string {
	var out strings.Builder
	for line := range strings.Lines(w.list("tables")) {
		f := strings.Fields(line)
		if len(f) == 3 && f[2] != tableName {
			out.WriteString(w.list("table", f[1], f[2]))
		}
	}
	return out.String()
}

// TestCollect: what packets met is told by Service and reason, and survives a table that was rebuilt.
func TestCollect(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		d := full()
		d.Frontends[1].Service = lb.Key{Namespace: "ns", Name: "gone"}
		w.set(d)
		c, err := dial(w.client, "udp", stranger4, vip4, 80, patient)
		must(t, err)
		defer c.Close()
		for range 3 {
			_, _ = c.Write([]byte("x"))
		}
		w.finds(refused, w.client, "tcp", client4, vip4, 81)
		w.finds(answer, w.client, "tcp", client4, vip4, 80)
		dropped, accepted, err := w.table.readCounters()
		must(t, err)
		for s, want := range map[series]uint64{
			{lb.Key{}, undeclared}:                              3,
			{lb.Key{Namespace: "ns", Name: "gone"}, noEndpoint}: 1,
		} {
			if dropped[s] != want {
				t.Errorf("%v: %d dropped, want %d", s, dropped[s], want)
			}
		}
		web := lb.Key{Namespace: "ns", Name: "web"}
		before := accepted[web]
		if before == 0 {
			t.Error("none accepted")
		}
		// The kernel counts from nothing again.
		w.node.Output("nft", "flush", "ruleset")
		w.table.owned.Audit()
		if _, accepted, _ = w.table.readCounters(); accepted[web] != before {
			t.Errorf("%d accepted after a repair, want %d", accepted[web], before)
		}
		if n := testutil.CollectAndCount(w.table); n != 4 {
			t.Errorf("%d metrics", n)
		}
		if problems, err := testutil.CollectAndLint(w.table); err != nil || problems != nil {
			t.Error(problems, err)
		}
	})
}

// TestNames: the number of Services that exist is bounded for names in the metrics, and not how many ever existed.
func TestNames(t *testing.T) {
	const churn, atOnce = 2000, 10
	var y packetTotals
	frontends := func(from, n int) (out []*frontend) {
		for i := range n {
			fe := tcp("2001:db8::")
			fe.Port, fe.Service = uint16(i+1), lb.Key{Namespace: "ns", Name: fmt.Sprint("s", from+i)}
			out = append(out, &frontend{Frontend: &fe})
		}
		return out
	}
	for i := range churn {
		y.name(slices.Values(frontends(i, atOnce)))
		for k := range y.named {
			y.totals[series{k, 0}]++
		}
		if len(y.named) != atOnce {
			t.Fatalf("at Service %d %d have a name, want %d", i, len(y.named), atOnce)
		}
	}
	if dropped, accepted := y.snapshot(); len(dropped) != 0 || len(accepted) != atOnce || len(y.totals) != atOnce {
		t.Errorf("%d Services have series, want %d", len(accepted), atOnce)
	}
	y.name(slices.Values(frontends(0, maxServices)))
	y.name(slices.Values(frontends(-5, maxServices+10)))
	if kept := frontends(0, 1)[0].Service; len(y.named) != maxServices || !y.named[kept] {
		t.Errorf("%d Services have a name, want %d; %s kept it: %v", len(y.named), maxServices, kept, y.named[kept])
	}
}

// TestUpgrade: a speaker replaces the table of a predecessor of another version while packets flow. Packets of admitted
// clients always pass, and packets of other clients never do.
func TestUpgrade(t *testing.T) {
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
			d := desired(full().Frontends...)
			d.NoLog = true // other rules
			w.table = quietTable()
			w.set(d)
			w.table = quietTable()
			d.NoLog = false
			flow(func() { w.set(d) })
			w.intact(w.table)
		}
	})
}
