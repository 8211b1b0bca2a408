package unnumbered

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/time/rate"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// maxReads bounds the packets that are read at once, and then in each second, so that a flood costs little. The kernel
// drops the rest.
const maxReads = 50

// Advertisements are a random time apart, between these bounds: the shortest that RFC 4861 section 6.2.1 allows. So a
// solicitation needs no answer of its own, and a flood of solicitations causes no flood of advertisements.
const (
	minInterval = 3 * time.Second
	maxInterval = 4 * time.Second
)

// port looks for the router on one link, and advertises this node there.
type port struct {
	finder *Finder
	link   lb.Interface
	conn   *ndp.Conn
	stop   context.CancelFunc
	// done is closed when the reader has ended.
	done chan struct{}
	// isUp reports whether packets can be sent.
	isUp    bool
	routers routers
	// advertiseAt is the time of this node's next advertisement.
	advertiseAt time.Time
	// sendErr is the error of the last packet.
	sendErr error
}

// advertisement is a received advertisement.
type advertisement struct {
	port *port
	from netip.Addr
}

// startPort opens the socket of a link, and reads it until close.
func startPort(ctx context.Context, f *Finder, l lb.Interface) (*port, error) {
	conn, err := listen(l)
	if err != nil {
		return nil, err
	}

	ctx, stop := context.WithCancel(ctx)
	p := &port{
		finder: f,
		link:   l,
		conn:   conn,
		stop:   stop,
		done:   make(chan struct{}),
	}
	p.setUp(time.Now(), l.Up)
	go func() {
		defer f.wake.Kick()
		defer close(p.done)
		p.read(ctx)
	}()

	return p, nil
}

// serves reports whether the port is for this link. Another link may get its name, and its address may change.
func (p *port) serves(l lb.Interface) bool {
	return p.link.Index == l.Index &&
		p.link.MAC == l.MAC &&
		p.link.LinkLocal() == l.LinkLocal()
}

// setUp sets whether packets can be sent.
func (p *port) setUp(moment time.Time, isUp bool) {
	if isUp && !p.isUp {
		// The cable may lead to another router, and the same one may have forgotten this node.
		p.routers.solicit(moment)
		p.advertiseAt = moment
	}

	p.isUp = isUp
}

// hasFailed reports whether the socket failed.
func (p *port) hasFailed() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// close closes the socket, and waits for the reader.
func (p *port) close() {
	p.stop()
	_ = p.conn.Close()
	<-p.done
}

// step sends the packets that are due, and returns when the next one is.
func (p *port) step(moment time.Time) time.Time {
	if !p.isUp {
		return moment.Add(maxInterval)
	}

	if !moment.Before(p.advertiseAt) {
		interval := minInterval + rand.N(maxInterval-minInterval)
		p.advertiseAt = moment.Add(interval)
		p.recordSent(p.advertise())
	}

	if p.routers.tick(moment, p.isEstablished()) {
		p.recordSent(p.solicit())
	}

	next := p.advertiseAt
	if p.routers.isSoliciting() && p.routers.next.Before(next) {
		next = p.routers.next
	}

	return next
}

// recordSent records the result of sending a packet.
func (p *port) recordSent(err error) {
	p.sendErr = err
	if err == nil {
		p.finder.Messages.WithLabelValues(p.link.Name, "sent").Inc()
	}
}

// isEstablished reports whether BGP has a session with the present router.
func (p *port) isEstablished() bool {
	present := p.routers.present
	return present.IsValid() && p.finder.config.Established(present.WithZone(p.link.Name))
}

// router returns the router of the link.
func (p *port) router() Router {
	r := Router{Looking: p.isUp && p.routers.isSoliciting()}
	switch {
	case !p.isUp:
		r.Problem = "link " + p.link.Name + " is down"
	case p.sendErr != nil:
		r.Problem = fmt.Sprintf("cannot send on link %s: %v", p.link.Name, p.sendErr)
	case !p.routers.present.IsValid() && !r.Looking:
		r.Problem = fmt.Sprintf("no router advertises itself on link %s", p.link.Name)
	case p.routers.other.IsValid():
		r.Problem = fmt.Sprintf(
			"link %s has more routers than %s: %s; it should have one",
			p.link.Name,
			p.routers.present,
			p.routers.other,
		)
	}

	if p.routers.present.IsValid() {
		r.Looking = false
		r.Address = p.routers.present.WithZone(p.link.Name)
		r.Source = p.link.LinkLocal().WithZone(p.link.Name)
	}

	return r
}

// read passes advertisements to the Finder, at a limited rate, until the socket fails or ctx ends.
func (p *port) read(ctx context.Context) {
	messages := p.finder.Messages
	in := make([]byte, mtu)
	limit := rate.NewLimiter(maxReads, maxReads)
	for limit.Wait(ctx) == nil {
		n, control, from, err := p.conn.ReadRaw(in)
		if err != nil {
			if ctx.Err() == nil {
				p.finder.config.Log.Warn("cannot look for routers any more", "link", p.link.Name, "error", err)
			}
			return
		}

		from = from.WithZone("")
		if from == p.link.LinkLocal() {
			continue // this node's own packet
		}

		if control == nil || !advertises(in[:n], from, control.HopLimit) {
			messages.WithLabelValues(p.link.Name, "rejected").Inc()
			continue
		}

		messages.WithLabelValues(p.link.Name, "received").Inc()
		select {
		case p.finder.received <- advertisement{port: p, from: from}:
		case <-ctx.Done():
			return
		}
	}
}
