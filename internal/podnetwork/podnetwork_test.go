package podnetwork

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

var (
	pod4, pod6 = netip.MustParseAddrPort("10.244.1.5:80"), netip.MustParseAddrPort("[fd00:10:244:1::5]:80")
	both       = []netip.AddrPort{pod4, pod6}
)

// TestAnswers asks a pod of another node in a real kernel: an accepted and a refused connection are answers, and routes
// are none.
func TestAnswers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		far := node.Attach("eth0", []string{"192.0.2.1/24", "2001:db8::1/64"}, "192.0.2.2/24", "2001:db8::2/64")
		node.AddDefault("192.0.2.2", "2001:db8::2")
		expect := func(when string, want4, want6 bool) {
			t.Helper()
			// A busy machine may take longer for an answer than a pod has.
			nstest.Until(t, 5*time.Second, when, func() bool {
				return answers(t.Context(), pod4) == want4 && answers(t.Context(), pod6) == want6
			})
		}
		expect("no pod", false, false)
		far.AddAddress("eth0", "10.244.1.5/32")
		far.Serve(pod4.String(), func(net.Conn) {})
		expect("a pod that accepts IPv4", true, false)
		far.AddAddress("eth0", "fd00:10:244:1::5/128")
		expect("and refuses IPv6", true, true)
		node.Output("ip", "route", "add", "blackhole", "10.244.1.0/24")
		expect("a route that drops", false, true)
	})
}

// TestBoot starts the plugin after the speaker, with IPv4 first. Neither the speaker's restart nor a later loss of the
// pods begins another wait.
func TestBoot(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		far := node.Attach("eth0", []string{"192.0.2.1/24", "2001:db8::1/64"}, "192.0.2.2/24", "2001:db8::2/64")
		far.AddAddress("eth0", "10.244.1.5/32", "fd00:10:244:1::5/128")
		var kicks atomic.Int64
		start := func() (*Boot, func()) {
			b := New(Config{
				Log: slog.New(slog.DiscardHandler), Remote: func() []netip.AddrPort { return both },
				Kick: func() { kicks.Add(1) },
			})
			stop := nstest.Running(t, b.Run)
			<-b.Looked()
			return b, stop
		}

		b, stop := start()
		if !b.Missing() {
			t.Error("a pod answers")
		}
		stop()
		b, stop = start()
		if !b.Missing() {
			t.Error("a pod answers after a restart")
		}
		node.Output("ip", "route", "add", "10.244.1.0/24", "via", "192.0.2.2")
		if !b.Missing() {
			t.Error("a pod answers though there is no route for IPv6")
		}
		node.Output("ip", "-6", "route", "add", "fd00:10:244:1::/64", "via", "2001:db8::2")
		nstest.Until(t, 5*time.Second, "the answers", func() bool { return !b.Missing() })
		nstest.Until(t, 5*time.Second, "the record", func() bool { return record().Exists() })
		stop()
		if kicks.Load() != 3 {
			t.Errorf("%d kicks, want one for each change", kicks.Load())
		}

		node.Output("ip", "route", "del", "10.244.1.0/24")
		b, stop = start()
		if b.Missing() {
			t.Error("a restarted speaker waits again")
		}
		stop()
		nstest.Must(t, Forget())
		if record().Exists() {
			t.Error("the record is still there")
		}
	})
}

// TestPatience waits no longer than three minutes for pods that never answer, and not at all while no pod is known on
// another node.
func TestPatience(t *testing.T) {
	for name, tt := range map[string]struct {
		// A pod is known from this time on, and answers from this time on.
		known, answers time.Duration
		settle         time.Duration
		// missing are the times of the changes of Missing.
		missing []time.Duration
	}{
		"never an answer": {known: 0, answers: time.Hour, missing: []time.Duration{0, patience}},
		"an answer":       {known: 0, answers: time.Minute, missing: []time.Duration{0, time.Minute}},
		"an answer, and time": {answers: time.Minute, settle: 15 * time.Second, missing: []time.Duration{
			0, 75 * time.Second,
		}},
		"pods later": {known: time.Minute, answers: 2 * time.Minute, missing: []time.Duration{
			time.Minute, 2 * time.Minute,
		}},
		"answers at once":  {known: time.Minute, answers: 0},
		"no pod elsewhere": {known: time.Hour, answers: time.Hour},
		"pods at the last end": {known: patience - time.Second, answers: time.Hour, missing: []time.Duration{
			patience - time.Second, patience,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var changes []time.Duration
				b := New(Config{
					Log:    slog.New(slog.DiscardHandler),
					Settle: tt.settle,
					Remote: func() []netip.AddrPort {
						if time.Since(start) < tt.known {
							return nil
						}
						return []netip.AddrPort{pod4}
					},
					Kick: func() { changes = append(changes, time.Since(start)) },
				})
				b.answers = func(context.Context, netip.AddrPort) bool { return time.Since(start) >= tt.answers }

				if !b.await(t.Context()) || b.Missing() {
					t.Errorf("it still waits, missing %t", b.Missing())
				}
				if !slices.Equal(changes, tt.missing) {
					t.Errorf("changes after %v, want %v", changes, tt.missing)
				}
			})
		})
	}
}
