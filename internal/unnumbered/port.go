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

// maxReads is how many packets are read at once, and then in each second, so that a flood costs little; the kernel
// drops the rest.
const maxReads = 50

// Between advertisements is a random time of these, the least that RFC 4861 section 6.2.1 allows: so a router that
// comes, or asks, needs no answer of its own, and a flood of questions is none of advertisements.
const minInterval, maxInterval = 3 * time.Second, 4 * time.Second

// port looks for the router on one link, and advertises this node there.
type port struct {
	finder *Finder
	link   lb.Interface
	conn   *ndp.Conn
	stop   context.CancelFunc
	// done is closed when nothing is read any more.
	done chan struct{}
	// up: packets can be sent.
	up      bool
	routers routers
	// advertiseAt is when this node advertises itself next.
	advertiseAt time.Time
	// trouble is why the last packet could not be sent.
	trouble error
}

// event is an advertisement that was heard.
type event struct {
	port *port
	from netip.Addr
}

func startPort(ctx context.Context, f *Finder, l lb.Interface) (*port, error) {
	conn, err := listen(l)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	p := &port{finder: f, link: l, conn: conn, stop: stop, done: make(chan struct{})}
	p.setUp(time.Now(), l.Up)
	go func() {
		defer f.wake.Kick()
		defer close(p.done)
		p.read(ctx)
	}()
	return p, nil
}

// serves reports whether the port is the one for a link: a new one may have its name, and its address may change.
func (p *port) serves(l lb.Interface) bool {
	return p.link.Index == l.Index && p.link.MAC == l.MAC && p.link.LinkLocal() == l.LinkLocal()
}

func (p *port) setUp(moment time.Time, up bool) {
	if up && !p.up {
		// The cable may lead to another router, and the same one may have forgotten this node.
		p.routers.ask(moment)
		p.advertiseAt = moment
	}
	p.up = up
}

// ended reports whether the socket failed.
func (p *port) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *port) close() {
	p.stop()
	_ = p.conn.Close()
	<-p.done
}

// step sends what is due, and returns when something is due again.
func (p *port) step(moment time.Time) time.Time {
	if !p.up {
		return moment.Add(maxInterval)
	}
	if !moment.Before(p.advertiseAt) {
		p.advertiseAt = moment.Add(minInterval + rand.N(maxInterval-minInterval))
		p.sent(p.advertise())
	}
	if p.routers.tick(moment, p.established()) {
		p.sent(p.solicit())
	}
	next := p.advertiseAt
	if p.routers.asking() && p.routers.next.Before(next) {
		next = p.routers.next
	}
	return next
}

func (p *port) sent(err error) {
	p.trouble = err
	if err == nil {
		p.finder.Messages.WithLabelValues(p.link.Name, "sent").Inc()
	}
}

// established reports whether BGP has a session with the present router.
func (p *port) established() bool {
	present := p.routers.present
	return present.IsValid() && p.finder.config.Established(present.WithZone(p.link.Name))
}

// router returns what was found.
func (p *port) router() Router {
	r := Router{Looking: p.up && p.routers.asking()}
	switch {
	case !p.up:
		r.Problem = "link " + p.link.Name + " is down"
	case p.trouble != nil:
		r.Problem = fmt.Sprintf("cannot send on link %s: %v", p.link.Name, p.trouble)
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
		r.Address, r.Source = p.routers.present.WithZone(p.link.Name), p.link.LinkLocal().WithZone(p.link.Name)
	}
	return r
}

// read passes what is heard, a limited number in a time, until the socket fails or ctx ends.
func (p *port) read(ctx context.Context) {
	messages, in := p.finder.Messages, make([]byte, mtu)
	limit := rate.NewLimiter(maxReads, maxReads)
	for limit.Wait(ctx) == nil {
		n, control, from, err := p.conn.ReadRaw(in)
		if err != nil {
			if ctx.Err() == nil {
				p.finder.config.Log.Warn("cannot look for routers any more", "link", p.link.Name, "error", err)
			}
			return
		}
		if from = from.WithZone(""); from == p.link.LinkLocal() {
			continue // this node's own
		}
		if control == nil || !advertises(in[:n], from, control.HopLimit) {
			messages.WithLabelValues(p.link.Name, "rejected").Inc()
			continue
		}
		messages.WithLabelValues(p.link.Name, "received").Inc()
		select {
		case p.finder.heard <- event{p, from}:
		case <-ctx.Done():
			return
		}
	}
}
