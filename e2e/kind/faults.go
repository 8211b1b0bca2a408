package kind

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// PowerOff cuts a host's power: its cables first, then all its processes at
// once. What it has on disk stays.
func (c *Cluster) PowerOff(ctx context.Context, hostName string) error {
	h, err := c.running(ctx, hostName)
	if err != nil {
		return err
	}
	if err := setPorts(ctx, "down", h); err != nil {
		return err
	}
	_, err = docker(ctx, nil, "kill", container(h))
	return err
}

// PowerOn starts a host again and returns when its links are there.
func (c *Cluster) PowerOn(ctx context.Context, hostName string) error {
	h, err := c.Plan.Find(hostName)
	if err != nil {
		return err
	}
	if _, err := c.pid(ctx, h); err == nil {
		return fmt.Errorf("host %s is powered on", h.Name)
	}
	if _, err := docker(ctx, nil, "start", container(h)); err != nil {
		return err
	}
	if !h.IsNode() {
		return c.plugOutside(ctx, h)
	}
	return c.plugNode(ctx, h)
}

// Freeze stops every process of a host. The kernel still answers ARP and NDP for it, and forwards.
func (c *Cluster) Freeze(ctx context.Context, hostName string) error {
	h, err := c.running(ctx, hostName)
	if err != nil {
		return err
	}
	if _, err := docker(ctx, nil, "pause", container(h)); err != nil {
		return err
	}
	c.setFrozen(h, true)
	return nil
}

// Thaw lets the processes of a frozen host go on.
func (c *Cluster) Thaw(ctx context.Context, hostName string) error {
	h, err := c.running(ctx, hostName)
	if err != nil {
		return err
	}
	if !c.isFrozen(h) {
		return nil
	}
	if _, err := docker(ctx, nil, "unpause", container(h)); err != nil {
		return err
	}
	c.setFrozen(h, false)
	return nil
}

// SetLink cuts or repairs the cable of a host's link: the carrier goes, addresses and routes stay.
func (c *Cluster) SetLink(ctx context.Context, hostName, link string, up bool) error {
	h, err := c.running(ctx, hostName)
	if err != nil {
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
	h.Legs = []wire.Leg{leg}
	return setPorts(ctx, state, h)
}

// Partition drops every frame between hosts of different groups: see the rules of wire.Plan.
func (c *Cluster) Partition(ctx context.Context, groups ...[]string) error {
	return drop(ctx)(c.Plan.Partition(groups...))
}

// Cut drops every frame from some hosts to others.
func (c *Cluster) Cut(ctx context.Context, link string, from, to []string) error {
	return drop(ctx)(c.Plan.Cut(link, from, to))
}

// Loss drops frames of a host at random.
func (c *Cluster) Loss(ctx context.Context, hostName string, loss wire.Loss) error {
	return drop(ctx)(c.Plan.Lose(hostName, loss))
}

// Block drops packets to UDP and TCP ports of a host, and from it to these ports of others.
func (c *Cluster) Block(ctx context.Context, hostName string, ports ...uint16) error {
	return drop(ctx)(c.Plan.Block(hostName, ports...))
}

// Heal ends partitions, cuts, losses and blocks, and repairs cables of hosts that are on.
func (c *Cluster) Heal(ctx context.Context) error {
	if err := drop(ctx)(wire.Healed(), nil); err != nil && c.NoDrops == "" {
		return err
	}
	var on []wire.Host
	for _, h := range c.Plan {
		if _, err := c.pid(ctx, h); err == nil {
			on = append(on, h)
		}
	}
	return setPorts(ctx, "up", on...)
}

// drop returns a function that applies rules of the switch.
func drop(ctx context.Context) func(rules string, err error) error {
	return func(rules string, err error) error {
		if err != nil {
			return err
		}
		if _, err := local(ctx, rules, "nft", "-f", "-"); err != nil {
			return fmt.Errorf("set rules of the switch: %w", err)
		}
		return nil
	}
}

// setPorts sets the ports of hosts up or down.
func setPorts(ctx context.Context, state string, hosts ...wire.Host) error {
	var b strings.Builder
	for _, h := range hosts {
		for _, l := range h.Legs {
			fmt.Fprintf(&b, "link set %s %s\n", l.Port, state)
		}
	}
	_, err := local(ctx, b.String(), "ip", "-batch", "-")
	return err
}

// running finds a host that is powered on.
func (c *Cluster) running(ctx context.Context, hostName string) (wire.Host, error) {
	h, err := c.Plan.Find(hostName)
	if err == nil {
		_, err = c.pid(ctx, h)
	}
	return h, err
}

func (c *Cluster) isFrozen(h wire.Host) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.frozen[h.Name]
}

func (c *Cluster) setFrozen(h wire.Host, frozen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen == nil {
		c.frozen = map[string]bool{}
	}
	c.frozen[h.Name] = frozen
}

// LoadImage imports an image archive on all nodes that are on.
func (c *Cluster) LoadImage(ctx context.Context, tar string) error {
	for _, h := range c.Plan.Nodes() {
		if err := c.importImage(ctx, h, tar); err != nil && !errors.Is(err, errOff) {
			return err
		}
	}
	return nil
}
