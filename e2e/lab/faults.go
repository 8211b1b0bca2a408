package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// Block drops packets to UDP and TCP ports of a host, and from it to these ports of others.
func (l *Lab) Block(ctx context.Context, hostName string, ports ...uint16) error {
	return l.drop(ctx)(l.Plan.Block(hostName, ports...))
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
