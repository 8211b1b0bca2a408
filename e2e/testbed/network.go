package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Neighbour returns the MAC that a host has for an address, empty if it has none.
func (b *Bed) Neighbour(ctx context.Context, host string, address netip.Addr) (string, error) {
	out, err := b.On(ctx, host, "ip", "-json", "neigh", "show", address.String())
	if err != nil {
		return "", err
	}
	var entries []struct {
		MAC string `json:"lladdr"`
	}
	if err := json.Unmarshal([]byte(out), &entries); err != nil {
		return "", fmt.Errorf("read neighbours of %s: %w", host, err)
	}
	for _, e := range entries {
		if e.MAC != "" {
			return e.MAC, nil
		}
	}
	return "", nil
}

// FlushNeighbours deletes a host's neighbour entries, so that it resolves addresses again.
func (b *Bed) FlushNeighbours(ctx context.Context, host string) error {
	for _, family := range []string{"-4", "-6"} {
		if _, err := b.On(ctx, host, "ip", family, "neigh", "flush", "all"); err != nil {
			return err
		}
	}
	return nil
}

// Owner returns the node whose MAC a host has for an address.
func (b *Bed) Owner(ctx context.Context, host string, address netip.Addr) (string, error) {
	mac, err := b.Neighbour(ctx, host, address)
	if err != nil {
		return "", err
	}
	if mac == "" {
		return "", fmt.Errorf("%s has no neighbour %s", host, address)
	}
	if node, known := b.macs[mac]; known {
		return node, nil
	}
	for _, node := range b.Cluster.Nodes() {
		// A node that is off cannot report its MAC: it is the MAC that no other node has.
		if own, err := b.On(ctx, node, "cat", "/sys/class/net/eth0/address"); err == nil {
			b.macs[strings.TrimSpace(own)] = node
		}
	}
	if node, known := b.macs[mac]; known {
		return node, nil
	}
	return "", fmt.Errorf("%s has %s at %s, which is no node's", host, address, mac)
}

// WaitOwner makes a host resolve an address until a node answers, and returns the node.
func (b *Bed) WaitOwner(ctx context.Context, host string, address netip.Addr) (string, error) {
	var owner string
	err := Until(ctx, 30*time.Second, "the owner of "+address.String(), func(ctx context.Context) (err error) {
		if err = b.resolve(ctx, host, address); err != nil {
			return err
		}
		owner, err = b.Owner(ctx, host, address)
		return err
	})
	return owner, err
}

// resolve deletes a host's neighbour entry and makes its kernel resolve the address again.
func (b *Bed) resolve(ctx context.Context, host string, address netip.Addr) error {
	// An entry that is not there is as good as one deleted.
	_, _ = b.On(ctx, host, "ip", "neigh", "del", address.String(), "dev", "eth0")
	_, err := b.On(
		ctx,
		host,
		b.prober(),
		"-n",
		"1",
		"-timeout",
		"300ms",
		"-protocol",
		"udp",
		netip.AddrPortFrom(address, discard).String(),
	)
	return err
}

// discard is a port that no Service has: a datagram to it only makes the kernel resolve the address.
const discard = 9

// Answered reports whether any machine answers ARP or NDP for an address.
func (b *Bed) Answered(ctx context.Context, host string, address netip.Addr) (bool, error) {
	if err := b.resolve(ctx, host, address); err != nil {
		return false, err
	}
	mac, err := b.Neighbour(ctx, host, address)
	return mac != "", err
}

// NextHops returns the next hops of a router's route to an address, none when
// there is no such route.
func (b *Bed) NextHops(ctx context.Context, router string, address netip.Addr) ([]netip.Addr, error) {
	family := "-4"
	if address.Is6() {
		family = "-6"
	}
	out, err := b.On(
		ctx,
		router,
		"ip",
		"-json",
		family,
		"route",
		"show",
		netip.PrefixFrom(address, address.BitLen()).String(),
	)
	if err != nil {
		return nil, err
	}
	type hop struct{ Gateway string }
	var routes []struct {
		hop
		Nexthops []hop
	}
	if strings.TrimSpace(out) == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(out), &routes); err != nil {
		return nil, fmt.Errorf("read routes of %s: %w", router, err)
	}
	var hops []netip.Addr
	for _, r := range routes {
		for _, h := range append(r.Nexthops, r.hop) {
			if a, err := netip.ParseAddr(h.Gateway); err == nil {
				hops = append(hops, a)
			}
		}
	}
	return hops, nil
}

// WaitHops waits until a router has n next hops for an address.
func (b *Bed) WaitHops(ctx context.Context, limit time.Duration, router string, address netip.Addr, n int) error {
	return Until(
		ctx,
		limit,
		fmt.Sprintf("%d next hops for %s on %s", n, address, router),
		func(ctx context.Context) error {
			hops, err := b.NextHops(ctx, router, address)
			if err == nil && len(hops) != n {
				err = fmt.Errorf("they are %v", hops)
			}
			return err
		},
	)
}

// MAC returns the MAC of a node on the nodes' LAN.
func (b *Bed) MAC(ctx context.Context, node string) (string, error) {
	return b.LinkMAC(ctx, node, LAN)
}

// LinkMAC returns the MAC of a host's link.
func (b *Bed) LinkMAC(ctx context.Context, host, link string) (string, error) {
	out, err := b.On(ctx, host, "cat", "/sys/class/net/"+link+"/address")
	return strings.TrimSpace(out), err
}
