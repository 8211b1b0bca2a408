package engine

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
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
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	var first wire.Order
	if err := in.Decode(&first); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	if first.Settings == nil {
		return errors.New("the first order has no settings")
	}
	warn := func(text string) { _ = out.Encode(wire.Notice{Warning: text}) }
	if confined != nil {
		warn("it is less confined than it should be: " + confined.Error())
	}
	e, err := start(*first.Settings, warn)
	if err != nil {
		return err
	}
	s := &service{engine: e, out: out, orders: make(chan wire.Order), gone: make(chan struct{})}
	if err := s.apply(first); err != nil {
		return err
	}
	go s.read(in)
	return s.run()
}

// service obeys orders and reports.
type service struct {
	engine *engine
	out    *gob.Encoder
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

// run ends with an error if GoBGP refuses what it should take: the next engine is given everything again.
func (s *service) run() error {
	tick := time.NewTicker(s.engine.settings.Check)
	defer tick.Stop()
	var settled <-chan time.Time
	for {
		var err error
		select {
		case <-s.gone:
			return errGone
		case o := <-s.orders:
			if o.Leave != nil {
				return s.engine.leave(*o.Leave)
			}
			err = s.apply(o)
		case <-s.engine.notes.wake:
			if settled == nil {
				settled = time.After(settleTime)
			}
		case <-settled:
			settled = nil
			err = s.report(s.engine.check())
		case <-tick.C:
			err = s.report(s.engine.check())
		}
		if err != nil {
			return err
		}
	}
}

// apply does what an order says. A Pong follows when GoBGP has answered.
func (s *service) apply(o wire.Order) error {
	if err := s.engine.change(o.Routes); err != nil {
		return err
	}
	err := s.report(s.engine.report())
	if o.Ping {
		_ = s.out.Encode(wire.Notice{Pong: true})
	}
	return err
}

// report reports the state, if it changed. That the speaker is gone shows elsewhere.
func (s *service) report(r wire.Report, err error) error {
	if err == nil && !reflect.DeepEqual(r, s.reported) {
		s.reported = r
		_ = s.out.Encode(wire.Notice{Report: &r})
	}
	return err
}
