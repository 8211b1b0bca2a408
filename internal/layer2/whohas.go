package layer2

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// WhoHas asks all machines on a link for an address, three times within this time, and returns the MACs that they answer with: of a
// conflict both, where a client sees one. It changes nothing and shares nothing with ports, as Ask. It returns an error if it cannot ask.
func (r *Responder) WhoHas(ctx context.Context, l lb.Interface, addr netip.Addr, within time.Duration) (map[lb.MAC]bool, error) {
	proto, all, macs := r.protocols[number(lb.FamilyOf(addr))], broadcast, map[lb.MAC]bool{}
	if group, ok := solicitedNode(addr); ok {
		all = groupMAC(group)
	}
	t, err := openTap(l, proto, proto.answers)
	defer t.close()
	if err != nil {
		return nil, fmt.Errorf("ask on link %s: %w", l.Name, err)
	}
	return macs, t.ask(ctx, proto.question(&l, all, addr), within, func(frame []byte) (enough bool) {
		if m, out := proto.parse(frame, l.MAC); out == answered && m.reply && m.claimed == addr {
			macs[m.mac] = true
		}
		return false
	})
}

// ask sends a frame three times within this time, and calls handle with each one that arrives, until it has heard enough.
func (e *tap) ask(ctx context.Context, frame []byte, within time.Duration, handle func(frame []byte) (enough bool)) error {
	for range questionTimes {
		if frame == nil || !e.send(frame) {
			return fmt.Errorf("ask on link %s: it is down, or has no address of the family", e.link.Name)
		}
		for end := time.Now().Add(within / questionTimes); ctx.Err() == nil && time.Now().Before(end); {
			await([]*tap{e}, time.Until(end))
			enough := false
			if e.receive(func(frame []byte) { enough = enough || handle(frame) }); enough {
				return nil
			}
		}
	}
	return nil
}
