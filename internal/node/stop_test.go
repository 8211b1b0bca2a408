package node

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/report"
)

// TestGoodbye: what routers hear when a speaker is ordered to stop.
func TestGoodbye(t *testing.T) {
	routes := plan.Plan{Routes: lb.MapOf(map[netip.Prefix]*[]lb.Route{{}: {{}}})}
	for _, tt := range []struct {
		name string
		node lb.Node
		plan plan.Plan
		want string
	}{
		{"well", lb.Node{}, routes, ""},
		{"well, and advertises nothing", lb.Node{}, plan.Plan{}, ""},
		{"drained", lb.Node{Draining: true}, plan.Plan{}, "node w1 is drained"},
		{"drained, and no other node can serve", lb.Node{Draining: true}, routes, ""},
		{"goes down", lb.Node{Draining: true, ShuttingDown: true}, plan.Plan{}, "node w1 goes down"},
		{"goes down, and no other node can serve", lb.Node{Draining: true, ShuttingDown: true}, routes, "node w1 goes down"},
		{"excluded", lb.Node{Excluded: true}, plan.Plan{}, ""},
	} {
		tt.node.Name = "w1"
		if got := goodbye(tt.node, tt.plan); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestHandOverBGP: the order of a stop. A node that goes down withdraws the routes that it leaves, and then says
// goodbye. A speaker that stops alone, or breaks, says nothing, so that routers keep its routes.
func TestHandOverBGP(t *testing.T) {
	for _, tt := range []struct {
		name, goodbye string
		breaks        bool
		want          string
	}{
		{"the node goes down", "node w1 goes down", false, "node w1 goes down"},
		{"the speaker alone", "", false, ""},
		{"broken meanwhile", "node w1 goes down", true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newTestRouter(t)
			w := newTestLoop(noLinks)
			ctx, breakDown := context.WithCancel(t.Context())
			defer breakDown()
			var withdrawn atomic.Bool
			w.loop = daemon.NewLoop(daemon.LoopConfig{Log: w.log, Sync: func(context.Context) (time.Duration, error) {
				if !w.stops.stopping.Load() {
					return 0, nil
				}
				if !w.stops.saidGoodbye.Swap(true) {
					if tt.breaks {
						breakDown()
					}
					return 100 * time.Millisecond, nil
				}
				withdrawn.Store(true)
				w.last.Store(&planned{Goodbye: tt.goodbye})
				return 0, nil
			}})
			w.last.Store(&planned{Standing: report.Standing{Plan: plan.Plan{Withdraws: time.Unix(1, 0)}}, Goodbye: tt.goodbye})
			go func() { _ = w.loop.Run(t.Context()) }()

			stop := background(t, w.sinks.BGP.Run)
			w.sinks.BGP.Set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: []lb.Peer{r.peer()}})
			if !w.self(inputs{sessions: w.sinks.BGP.Sessions()}).Unfit.Has(sessionless) {
				t.Error("it says that it has a session")
			}
			nstest.Until(t, 20*time.Second, "the node says that it has a session for one family", func() bool {
				return w.self(inputs{
					sessions: w.sinks.BGP.Sessions(),
				}).Unfit&sessionless == sessionless&^lb.SessionlessOf(lb.FamilyOf(r.address.Addr()))
			})
			order := make(chan struct{})
			close(order)
			w.HandOver(ctx, order)
			if withdrawn.Load() == tt.breaks {
				t.Errorf("all withdrawn: %t", withdrawn.Load())
			}
			stop() // as serve does next, and BFD ends after BGP
			if got := <-r.heard; got != tt.want {
				t.Errorf("the router heard %q, want %q", got, tt.want)
			}
		})
	}
}

// testRouter has one session of BGP, and tells how it ended: the text of a Cease, Administrative Shutdown, or "" if the
// connection was closed without a NOTIFICATION.
type testRouter struct {
	address netip.AddrPort
	heard   chan string
}

func newTestRouter(t *testing.T) *testRouter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	r := &testRouter{l.Addr().(*net.TCPAddr).AddrPort(), make(chan string, 1)}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		r.heard <- serveBGP(conn)
	}()
	return r
}

func (r *testRouter) peer() lb.Peer {
	return lb.Peer{
		Name: "r", LocalASN: 65000, PeerASN: 65001, Address: r.address.Addr(), Port: r.address.Port(),
		HoldTime: 90 * time.Second, ConnectTime: time.Second, GracefulRestart: true,
	}
}

// The types of messages of RFC 4271 section 4.1.
const (
	bgpOpen         = 1
	bgpNotification = 3
	bgpKeepalive    = 4
)

func bgpMessage(kind byte, body []byte) []byte {
	m := make([]byte, 16, 19+len(body))
	for i := range m {
		m[i] = 0xff
	}
	m = binary.BigEndian.AppendUint16(m, uint16(19+len(body)))
	return append(append(m, kind), body...)
}

// serveBGP answers an OPEN and each KEEPALIVE until the session ends.
func serveBGP(conn net.Conn) string {
	// AS 65001, 90 s, 192.0.2.2; optional parameters: the capabilities IPv4 unicast and graceful restart (RFC 4724
	// section 3).
	open := []byte{4, 0xfd, 0xe9, 0, 90, 192, 0, 2, 2, 16, 2, 14, 1, 4, 0, 1, 0, 1, 64, 6, 0, 120, 0, 1, 1, 0}
	for {
		header := make([]byte, 19)
		if _, err := io.ReadFull(conn, header); err != nil {
			if errors.Is(err, io.EOF) {
				return ""
			}
			return err.Error()
		}
		body := make([]byte, binary.BigEndian.Uint16(header[16:])-19)
		if _, err := io.ReadFull(conn, body); err != nil {
			return err.Error()
		}
		switch header[18] {
		case bgpOpen:
			_, _ = conn.Write(bgpMessage(bgpOpen, open))
			_, _ = conn.Write(bgpMessage(bgpKeepalive, nil))
		case bgpNotification:
			if len(body) < 3 || body[0] != 6 || body[1] != 2 {
				return "a NOTIFICATION other than Administrative Shutdown"
			}
			return string(body[3:])
		}
	}
}

// TestHandOver: a speaker that is ordered to stop goes on until others own its addresses and it has heard them
// announce these, but for a bounded time. A speaker that announces nothing stops at once.
//
// Trap: a pod that stops at once, before another one took over (MetalLB: 0 to 2 s of grace;
// kube-vip #1220).
func TestHandOver(t *testing.T) {
	for _, tt := range []struct {
		name    string
		planned bool
		// obeyed is when the plan follows, 0 for never; ended when the process breaks.
		obeyed, ended time.Duration
		want          time.Duration
	}{
		{"nothing announced yet", false, 0, 0, 0},
		{"the plan follows", true, 100 * time.Millisecond, 0, 100 * time.Millisecond},
		{"no plan follows", true, 0, 0, handoverTime},
		{"broken meanwhile", true, 0, time.Second, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				w := &Loop{log: log}
				w.sinks.Layer2 = layer2.New(layer2.Config{Log: log, Links: noLinks, Changed: func() {}})
				w.loop = daemon.NewLoop(daemon.LoopConfig{Log: log, Sync: func(context.Context) (time.Duration, error) {
					if w.stops.stopping.Load() && tt.obeyed > 0 {
						time.AfterFunc(tt.obeyed, func() { w.stops.saidGoodbye.Store(true) })
					}
					return 0, nil
				}})
				go func() { _ = w.loop.Run(t.Context()) }()
				if tt.planned {
					w.last.Store(&planned{})
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stop := make(chan struct{})
				var started time.Time
				time.AfterFunc(time.Minute, func() {
					started = time.Now()
					close(stop)
					if tt.ended > 0 {
						time.AfterFunc(tt.ended, cancel)
					}
				})
				w.HandOver(ctx, stop)
				if took := time.Since(started); took < tt.want || took > tt.want+2*handoverInterval {
					t.Errorf("took %v, want %v", took, tt.want)
				}
			})
		})
	}
}
