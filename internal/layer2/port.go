package layer2

import (
	"cmp"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// attached is the readers' view of a port's link.
type attached struct {
	lb.Interface
	// foreignMachines records the machines that ask here.
	foreignMachines *foreignMachines
}

// port is a link with its wires, one for each protocol and each with a reader.
type port struct {
	r      *Responder
	link   atomic.Pointer[attached]
	wires  [kinds]wire
	opened time.Time
	// schedule is what to send, and resume when the link may take more.
	schedule *schedule
	resume   time.Time
	// failed: a reader has stopped.
	failed atomic.Bool
	done   sync.WaitGroup
}

// openPort opens the wires of a link, and reads them until close.
func (r *Responder) openPort(l lb.Interface, pace *pace) (*port, error) {
	p := &port{r: r, opened: r.now(), schedule: newSchedule(r.config.Timers, pace, r.between)}
	p.setLink(l)
	for i, proto := range r.protocols {
		w, err := r.listen(l, proto)
		if err != nil {
			p.close()
			return nil, err
		}

		p.wires[i] = w
		p.done.Go(func() { p.read(proto, w) })
	}

	return p, nil
}

func (p *port) setLink(l lb.Interface) {
	p.link.Store(&attached{Interface: l, foreignMachines: p.r.foreignOn(l.Name)})
}

// close closes the wires and waits for their readers.
func (p *port) close() {
	for _, w := range p.wires {
		if w == nil {
			continue
		}

		if err := w.Close(); err != nil {
			p.r.config.Log.Debug("close port", "link", p.link.Load().Name, "error", err)
		}
	}

	p.done.Wait()
}

// read answers questions until the wire fails or is closed. A link that goes down or
// vanishes fails its sockets (packet(7)); Run opens new ones.
func (p *port) read(proto protocol, w wire) {
	frame := make([]byte, maxFrame)
	for {
		n, err := w.Read(frame)
		if err != nil {
			p.failed.Store(true)
			p.r.Kick()
			return
		}

		answer, out := p.handle(proto, frame[:n])
		if out == answered {
			result := sent
			if _, err := w.Write(answer); err != nil {
				result, out = failed, sendFailed
			}

			p.r.counts.answers[proto.number][result].Add(1)
		}

		p.r.counts.requests[proto.number][out].Add(1)
	}
}

// handle returns the answer to a frame, or why there is none.
func (p *port) handle(proto protocol, frame []byte) ([]byte, outcome) {
	l := p.link.Load()
	m, out := proto.parse(frame, l.MAC)
	if out != answered {
		return nil, out
	}

	if m.nonce != 0 && p.r.answersAbout(m.target) {
		return proto.answer(&l.Interface, l.MAC, m), answered
	}

	t := p.r.table.Load()
	if e := t.on(m.claimed, &l.Interface); e != nil {
		out = p.r.claimed(t, e, l, m)
		// Announcements and answers have the address as sender address: not a question.
		if !m.isQuestion() {
			return nil, out
		}
	}

	if !m.target.IsValid() {
		return nil, notRequest
	}

	e := t.on(m.target, &l.Interface)
	if e == nil {
		if m.isQuestion() && t.elsewhere(m.target) {
			p.r.asker(t, l.foreignMachines, m, frame)
		}

		return nil, notOurs
	}

	if out := p.r.asked(t, e, l, m); out != answered {
		return nil, out
	}

	p.r.asker(t, l.foreignMachines, m, frame)
	return proto.answer(&l.Interface, cmp.Or(e.mac, l.MAC), m), answered
}

// announce announces an address by one of the protocol's forms in turn, unless it is no longer ours or the lease has
// lapsed, to one machine or to all. It reports whether that is done: false means that the link takes nothing at
// present.
func (p *port) announce(addr netip.Addr, turn int, to *machine) (done bool) {
	l := p.link.Load()
	e := p.r.table.Load().on(addr, &l.Interface)
	if e == nil || e.on(l.Name) != ours || !p.r.lease.valid() {
		return true
	}

	n := number(lb.FamilyOf(addr))
	frame := p.r.protocols[n].announce(&l.Interface, addr, turn, to)
	if to != nil && to.isGateway() && p.r.config.Requests {
		frame = p.r.protocols[n].request(&l.Interface, addr, *to)
	}

	return p.send(n, &p.r.counts.announcements[n], frame)
}

// near returns the machines that hear of an address by themselves: gateways, and those that asked lately.
func (p *port) near(addr netip.Addr) []machine {
	machines, _ := p.r.near(p.link.Load().foreignMachines, number(lb.FamilyOf(addr)))
	return machines
}

// probe asks whether any machine has an address, and reports the same.
func (p *port) probe(addr netip.Addr) (done bool) {
	n := number(lb.FamilyOf(addr))
	return p.send(n, &p.r.counts.probes[n], p.r.protocols[n].probe(&p.link.Load().Interface, addr))
}

// doubt asks whether another machine answers for an address, and reports the same. Unlike a probe's, the answer goes to
// this link only: a claim to all may belong to a move.
func (p *port) doubt(addr netip.Addr) (done bool) {
	n := number(lb.FamilyOf(addr))
	return p.send(n, &p.r.counts.probes[n], p.r.protocols[n].question(&p.link.Load().Interface, lb.MAC{}, addr))
}

// send sends a frame. None is one that cannot be sent.
func (p *port) send(family int, count *[results]atomic.Uint64, frame []byte) (done bool) {
	result := failed
	if frame != nil {
		taken, err := p.wires[family].Offer(frame)
		switch {
		case taken:
			result = sent
		case err == nil:
			return false
		}
	}

	count[result].Add(1)
	return true
}
