package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// PowerOff cuts a host's power: its cables first, then all its processes at
// once. Its files on disk stay.
func (l *Lab) PowerOff(ctx context.Context, hostName string) error {
	return l.locked(ctx, hostName, func(h wire.Host) error {
		if _, err := l.pid(h); err != nil {
			return err
		}
		return l.stop(ctx, h)
	})
}

// PowerOn starts a host again and returns when its services are being
// started. A node then has every image that was loaded while it was off.
func (l *Lab) PowerOn(ctx context.Context, hostName string) error {
	return l.locked(ctx, hostName, func(h wire.Host) error {
		if _, err := l.pid(h); err == nil {
			return fmt.Errorf("host %s is powered on", h.Name)
		}
		if err := l.start(ctx, h); err != nil {
			return err
		}
		if !h.IsNode() {
			return nil
		}
		return l.importImages(ctx, h)
	})
}

// Freeze stops every process of a host. Its kernel still answers ARP and NDP
// and forwards packets: a hung machine, not a dead one.
func (l *Lab) Freeze(ctx context.Context, hostName string) error {
	return l.setFrozen(ctx, hostName, "1")
}

// Thaw lets the processes of a frozen host go on.
func (l *Lab) Thaw(ctx context.Context, hostName string) error {
	return l.setFrozen(ctx, hostName, "0")
}

func (l *Lab) setFrozen(ctx context.Context, hostName, value string) error {
	return l.locked(ctx, hostName, func(h wire.Host) error {
		if _, err := l.pid(h); err != nil {
			return err
		}
		dir, err := hostCgroup(h.Name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte(value), 0o644); err != nil {
			return fmt.Errorf("freeze or thaw host %s: %w", h.Name, err)
		}
		return waitCgroup(ctx, dir, "frozen "+value)
	})
}

func frozen(cgroup string) bool {
	b, err := os.ReadFile(filepath.Join(cgroup, "cgroup.freeze"))
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// SetLink cuts or repairs the cable of a host's link. Both ends lose carrier, as
// with a pulled plug; addresses and routes stay.
func (l *Lab) SetLink(ctx context.Context, hostName, link string, up bool) error {
	return l.locked(ctx, hostName, func(h wire.Host) error {
		if _, err := l.pid(h); err != nil {
			return err
		}
		leg, err := h.Leg(link)
		if err != nil {
			return err
		}
		state := "down"
		if up {
			state = "up"
		}
		if err := ipBatch(ctx, switchNetns, fmt.Sprintf("link set %s %s\n", leg.Port, state)); err != nil {
			return fmt.Errorf("set link %s of %s %s: %w", link, h.Name, state, err)
		}
		return nil
	})
}

// Partition drops every frame between hosts of different groups: see the rules of wire.Plan.
func (l *Lab) Partition(ctx context.Context, groups ...[]string) error {
	return l.drop(ctx)(l.Plan.Partition(groups...))
}

// Cut drops every frame from some hosts to others.
func (l *Lab) Cut(ctx context.Context, link string, from, to []string) error {
	return l.drop(ctx)(l.Plan.Cut(link, from, to))
}

// Loss drops frames of a host at random.
func (l *Lab) Loss(ctx context.Context, hostName string, loss wire.Loss) error {
	return l.drop(ctx)(l.Plan.Lose(hostName, loss))
}

// Block drops packets between a host and others to and from UDP and TCP ports.
func (l *Lab) Block(ctx context.Context, hostName string, ports ...uint16) error {
	return l.drop(ctx)(l.Plan.Block(hostName, ports...))
}

// Police passes ARP to a host up to a rate.
func (l *Lab) Police(ctx context.Context, hostName string, perSecond, burst int) error {
	return l.drop(ctx)(l.Plan.Police(hostName, perSecond, burst))
}

// proxyPort is a port of the switch, with the other end of its cable in the switch.
const proxyPort, proxyEnd = "lan-proxy", "proxy-end"

// AnswerFor makes the switch answer ARP for IPv4 addresses with a host's MAC, and drop what it gets for that MAC, as a
// fabric does that answers for its hosts and has not noticed the end of one (RFC 9161, section 3). It lasts until
// Forget.
func (l *Lab) AnswerFor(ctx context.Context, hostName string, addresses ...netip.Addr) error {
	return l.locked(ctx, hostName, func(h wire.Host) error {
		var b strings.Builder
		fmt.Fprintf(&b, "link add %s type veth peer name %s address %s\n", proxyPort, proxyEnd, h.Legs[0].MAC)
		for _, a := range addresses {
			// The switch has no route to who asks: it sends nothing but ARP.
			fmt.Fprintf(&b, "addr add %s/32 dev %s\n", a, proxyEnd)
		}
		fmt.Fprintf(&b, "link set %s up\nlink set %s master %s up\n", proxyEnd, proxyPort, wire.LAN)
		if err := ipBatch(ctx, switchNetns, b.String()); err != nil {
			return fmt.Errorf("make the switch answer for %s: %w", h.Name, err)
		}
		return nil
	})
}

// Forget makes the switch answer for no address any more, and returns how many packets it has sent as that host. It
// does nothing if it answers for none.
func (l *Lab) Forget(ctx context.Context) (sent int, err error) {
	if _, err := output(ctx, "", "ip", "-netns", switchNetns, "link", "show", proxyPort); err != nil {
		return 0, nil
	}
	text, err := output(
		ctx,
		"",
		"ip",
		"netns",
		"exec",
		switchNetns,
		"cat",
		"/sys/class/net/"+proxyEnd+"/statistics/tx_packets",
	)
	if err == nil {
		sent, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	return sent, errors.Join(err, ipBatch(ctx, switchNetns, "link delete "+proxyPort+"\n"))
}

// drop returns a function that applies rules under the lab's lock.
func (l *Lab) drop(ctx context.Context) func(rules string, err error) error {
	return func(rules string, err error) error {
		if err != nil {
			return err
		}
		unlock, err := lock(ctx)
		if err != nil {
			return err
		}
		return errors.Join(applyRules(ctx, rules), unlock())
	}
}

func applyRules(ctx context.Context, rules string) error {
	if _, err := output(ctx, rules, "nsenter", "--net="+netnsDir+"/"+switchNetns, "nft", "-f", "-"); err != nil {
		return fmt.Errorf("set rules of the switch: %w", err)
	}
	return nil
}

// Heal ends partition, cut, loss and block of ports, and repairs all cables. Hosts that are off stay off,
// frozen ones stay frozen.
func (l *Lab) Heal(ctx context.Context) error {
	unlock, err := lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(l.heal(ctx), unlock())
}

func (l *Lab) heal(ctx context.Context) error {
	if err := applyRules(ctx, wire.Healed()); err != nil {
		return err
	}
	var b strings.Builder
	for _, h := range l.Plan {
		if _, err := l.pid(h); err != nil {
			continue
		}
		for _, leg := range h.Legs {
			fmt.Fprintf(&b, "link set %s up\n", leg.Port)
		}
	}
	return ipBatch(ctx, switchNetns, b.String())
}

// locked runs a change of one host under the lab's lock.
func (l *Lab) locked(ctx context.Context, hostName string, change func(wire.Host) error) error {
	h, err := l.Plan.Find(hostName)
	if err != nil {
		return err
	}
	unlock, err := lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(change(h), unlock())
}
