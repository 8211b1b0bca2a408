package layer2

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// attached is a link as the readers of its port see it.
type attached struct {
	link.Link
	// usable caches Usable, which looks at names.
	usable bool
}

// port is a link in use: a wire for each family, and a reader of each.
type port struct {
	r      *Responder
	link   atomic.Pointer[attached]
	wires  [families]wire
	opened time.Time
	// epoch differs for each opening and each MAC, so that addresses are announced anew.
	epoch uint64
	// failed: a reader has given up.
	failed atomic.Bool
	done   sync.WaitGroup
}

// openPort opens both wires of a link and reads them until close.
func (r *Responder) openPort(l link.Link) (*port, error) {
	p := &port{r: r, opened: time.Now()}
	p.setLink(l)
	for i, proto := range r.protocols {
		w, err := r.listen(l, proto)
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.wires[i] = w
		p.done.Go(func() { p.read(proto, w) })
	}
	return p, nil
}

func (p *port) setLink(l link.Link) { p.link.Store(&attached{Link: l, usable: l.Usable()}) }

// close closes the wires and waits for their readers.
func (p *port) close() error {
	var errs []error
	for _, w := range p.wires {
		if w != nil {
			errs = append(errs, w.Close())
		}
	}
	p.done.Wait()
	return errors.Join(errs...)
}

// read answers questions until the wire fails or is closed. A link that goes
// down or vanishes fails its sockets (packet(7)); Run sees to a new one.
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
			out = p.reply(proto, w, answer)
		}
		p.r.counts.requests[number(proto.family)][out].Add(1)
	}
}

func (p *port) reply(proto protocol, w wire, answer []byte) outcome {
	if _, err := w.Write(answer); err != nil {
		p.r.counts.responses[number(proto.family)][failed].Add(1)
		return sendFailed
	}
	p.r.counts.responses[number(proto.family)][sent].Add(1)
	return answered
}

// handle decides on a frame: the answer, or why there is none.
func (p *port) handle(proto protocol, frame []byte) ([]byte, outcome) {
	l := p.link.Load()
	q, out := proto.parse(frame, l.MAC)
	if out != answered && out != notRequest {
		return nil, out
	}
	// Who announces or answers names the address as the sender's: not a question.
	if (out == notRequest || q.sender == q.target) && p.answers(l, q.sender) {
		return nil, claimed
	}
	if out == answered && !p.answers(l, q.target) {
		return nil, notOurs
	}
	if out != answered {
		return nil, out
	}
	answer, err := proto.answer(&l.Link, q)
	if err != nil {
		return nil, sendFailed
	}
	return answer, answered
}

func (p *port) answers(l *attached, addr netip.Addr) bool {
	return p.r.table.Load().answers(addr, &l.Link, l.usable)
}

// announce tells all neighbours of an address, unless it is no longer ours.
func (p *port) announce(addr netip.Addr) {
	l := p.link.Load()
	if !p.answers(l, addr) {
		return
	}
	n := number(lb.FamilyOf(addr))
	frames, err := p.r.protocols[n].announce(&l.Link, addr)
	if err != nil {
		p.r.counts.announcements[n][failed].Add(1)
	}
	for _, frame := range frames {
		result := sent
		if _, err := p.wires[n].Write(frame); err != nil {
			result = failed
		}
		p.r.counts.announcements[n][result].Add(1)
	}
}
