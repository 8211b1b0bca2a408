package engine

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/child"
)

// settleTime lets GoBGP finish a change of state, which it reports just before it happens.
const settleTime = 20 * time.Millisecond

// Serve has the session that the speaker orders, which started this process. It returns nil when the speaker ordered it to
// leave, and an error when the speaker is gone or did not start it. Then the caller should exit at once: the kernel closes
// the connection without a NOTIFICATION, and a router with graceful restart keeps the routes (RFC 4724 section 4.2).
func Serve() error {
	conn, err := child.Parent()
	if err != nil {
		return err
	}
	confined := confine()
	return serve(conn, confined)
}

// errGone: the speaker closed the connection, or its process ended.
var errGone = errors.New("the speaker is gone")

func serve(conn io.ReadWriter, confined error) error {
	in, out := gob.NewDecoder(conn), wire.NewWriter[wire.Notice](conn)
	var first wire.Order
	if err := in.Decode(&first); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	if first.Settings == nil {
		return errors.New("the first order has no settings")
	}
	log := slog.New(&logRelay{out: out, debug: first.Settings.Debug})
	if confined != nil {
		log.Warn("BGP engine is less confined than it should be", "error", confined)
	}
	e, err := start(*first.Settings, log)
	if err != nil {
		return err
	}
	s := &service{engine: e, out: out, log: log, orders: make(chan wire.Order), gone: make(chan struct{})}
	s.apply(first)
	go s.read(in)
	return s.run()
}

// service obeys orders and reports.
type service struct {
	engine *engine
	out    *wire.Writer[wire.Notice]
	log    *slog.Logger
	orders chan wire.Order
	gone   chan struct{}
	// reported is the last report.
	reported wire.Report
}

func (s *service) read(in *gob.Decoder) {
	defer close(s.gone)
	for {
		var o wire.Order
		if in.Decode(&o) != nil {
			return
		}
		s.orders <- o
	}
}

func (s *service) run() error {
	tick := time.NewTicker(s.engine.settings.Check)
	defer tick.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-s.gone:
			return errGone
		case o := <-s.orders:
			if o.Leave != nil {
				return s.engine.leave(*o.Leave)
			}
			s.apply(o)
		case <-s.engine.notes.wake:
			if settled == nil {
				settled = time.After(settleTime)
			}
		case <-settled:
			settled = nil
			s.fail(s.engine.mendPeer())
			s.report()
		case <-tick.C:
			s.fail(s.engine.mend())
			s.report()
		}
	}
}

// apply does what an order says. A Pong follows when GoBGP has answered.
func (s *service) apply(o wire.Order) {
	s.fail(s.engine.change(o.Routes))
	s.report()
	if o.Ping {
		_ = s.out.Write(wire.Notice{Pong: true})
	}
}

// report reports the state, if it changed. That the speaker is gone shows elsewhere.
func (s *service) report() {
	r, err := s.engine.report()
	if err != nil {
		s.fail(err)
		return
	}
	if !reflect.DeepEqual(r, s.reported) {
		s.reported = r
		_ = s.out.Write(wire.Notice{Report: &r})
	}
}

// fail logs an error. What failed is tried again by the next mend.
func (s *service) fail(err error) {
	if err != nil {
		s.log.Error("cannot apply all BGP settings", "error", err)
	}
}
