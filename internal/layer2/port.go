package layer2

import (
	"cmp"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// portLink is the readers' view of a port's link.
type portLink struct {
	lb.Interface
	// foreignMachines records the machines that ask here.
	foreignMachines *foreignMachines
}

// linkPort is a link with its connections, one for each protocol and each with a reader.
type linkPort struct {
	r        *Responder
	link     atomic.Pointer[portLink]
	conns    [protocolCount]frameConn
	openedAt time.Time
	// schedule has the frames to send. The link may take no more of them before resumeAt.
	schedule *schedule
	resumeAt time.Time
	// hasFailed reports whether a reader has stopped.
	hasFailed atomic.Bool
	readers   sync.WaitGroup
}

// openPort opens the connections of a link, and reads them until close.
func (r *Responder) openPort(l lb.Interface, limit *rateLimit) (*linkPort, error) {
	p := &linkPort{
		r:        r,
		openedAt: r.system.clock(),
		schedule: newSchedule(r.config.Timers, limit, r.system.random),
	}
	p.setLink(l)

	for i, proto := range r.protocols {
		conn, err := r.system.listen(l, proto)
		if err != nil {
			p.close()
			return nil, err
		}

		p.conns[i] = conn
		p.readers.Go(func() { p.serve(proto, conn) })
	}

	return p, nil
}

// setLink sets the link of the port.
func (p *linkPort) setLink(l lb.Interface) {
	p.link.Store(&portLink{Interface: l, foreignMachines: p.r.foreignOn(l.Name)})
}

// close closes the connections and waits for their readers.
func (p *linkPort) close() {
	for _, conn := range p.conns {
		if conn == nil {
			continue
		}

		err := conn.Close()
		if err != nil {
			p.r.config.Log.Debug("close port", "link", p.link.Load().Name, "error", err)
		}
	}

	p.readers.Wait()
}

// serve answers questions until the connection fails or is closed. A link that goes down or
// vanishes fails its sockets (packet(7)); Run opens new ones.
func (p *linkPort) serve(proto protocol, conn frameConn) {
	frame := make([]byte, maxFrame)
	for {
		n, err := conn.Read(frame)
		if err != nil {
			p.hasFailed.Store(true)
			p.r.Kick()
			return
		}

		answer, result := p.answer(proto, frame[:n])
		if result == answered {
			sendResult := sent
			_, err := conn.Write(answer)
			if err != nil {
				sendResult = failed
				result = sendFailed
			}

			p.r.counters.answers[proto.index][sendResult].Add(1)
		}

		p.r.counters.requests[proto.index][result].Add(1)
	}
}

// answer returns the answer to a frame, or why there is none.
func (p *linkPort) answer(proto protocol, frame []byte) ([]byte, frameResult) {
	l := p.link.Load()
	m, result := proto.parse(frame, l.MAC)
	if result != answered {
		return nil, result
	}

	if m.isContest && !m.isReply {
		return p.answerContest(proto, l, m)
	}

	if m.nonce != 0 && p.r.answersAbout(m.target) {
		return proto.answer(&l.Interface, l.MAC, m), answered
	}

	t := p.r.table.Load()
	claimedEntry := t.entryOn(m.claimed, &l.Interface)
	if claimedEntry != nil {
		result = p.r.handleClaim(t, claimedEntry, l, m)
		// Announcements and answers have the address as sender address: not a question.
		if !m.isQuestion() {
			return nil, result
		}
	}

	if !m.target.IsValid() {
		return nil, notRequest
	}

	e := t.entryOn(m.target, &l.Interface)
	if e == nil {
		if m.isQuestion() && t.isElsewhere(m.target) {
			p.r.recordAsker(t, l.foreignMachines, m, frame)
		}

		return nil, notOurs
	}

	result = p.r.checkQuestion(t, e, l, m)
	if result != answered {
		return nil, result
	}

	p.r.recordAsker(t, l.foreignMachines, m, frame)
	mac := cmp.Or(e.mac, l.MAC)
	return proto.answer(&l.Interface, mac, m), answered
}

// announce announces an address by one of the protocol's forms in turn, to one machine or, if that is nil, to all. It
// sends nothing if the address is no longer owned or the lease has lapsed. It reports false if the link takes nothing
// at present.
func (p *linkPort) announce(addr netip.Addr, turn int, to *machine) (isDone bool) {
	l := p.link.Load()
	e := p.r.table.Load().entryOn(addr, &l.Interface)
	isOwned := e != nil && e.phaseOn(l.Name) == owned
	if !isOwned || !p.r.lapses.isValid() {
		return true
	}

	family := familyIndex(lb.FamilyOf(addr))
	proto := p.r.protocols[family]
	frame := proto.announce(&l.Interface, addr, turn, to)
	if to != nil && to.isGateway() && p.r.config.AnnounceByRequest {
		frame = proto.request(&l.Interface, addr, *to)
	}

	return p.send(family, &p.r.counters.announcements[family], frame)
}

// machinesNear returns the machines that get announcements of an address by themselves: gateways, and machines that
// asked recently.
func (p *linkPort) machinesNear(addr netip.Addr) []machine {
	l := p.link.Load()
	family := familyIndex(lb.FamilyOf(addr))
	machines, _ := p.r.machinesNear(l.foreignMachines, family)
	return machines
}

// probe asks whether any machine has an address. It reports false if the link takes nothing at present.
func (p *linkPort) probe(addr netip.Addr) (isDone bool) {
	family := familyIndex(lb.FamilyOf(addr))
	l := p.link.Load()
	frame := p.r.protocols[family].probe(&l.Interface, addr)
	return p.send(family, &p.r.counters.probes[family], frame)
}

// checkDuplicate asks whether another machine answers for an address. It reports false if the link takes nothing at
// present. The answer goes to this link only, unlike the answer to a probe: a claim to all machines may belong to a
// move.
func (p *linkPort) checkDuplicate(addr netip.Addr) (isDone bool) {
	family := familyIndex(lb.FamilyOf(addr))
	l := p.link.Load()
	frame := p.r.protocols[family].question(&l.Interface, lb.MAC{}, addr)
	return p.send(family, &p.r.counters.probes[family], frame)
}

// send sends a frame, and reports false if the link takes nothing at present. A nil frame counts as failed.
func (p *linkPort) send(family int, counts *[sendResults]atomic.Uint64, frame []byte) (isDone bool) {
	result := failed
	if frame != nil {
		hasSent, err := p.conns[family].TryWrite(frame)
		if !hasSent && err == nil {
			return false
		}

		if hasSent {
			result = sent
		}
	}

	counts[result].Add(1)
	return true
}
