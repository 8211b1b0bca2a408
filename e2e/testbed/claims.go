package testbed

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/whohas"
)

// Claims are the frames received on a host in which machines claim addresses.
type Claims struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}

	mu   sync.Mutex
	list []whohas.Claim
}

// Claims starts to request addresses of one network by ARP and NDP, repeatedly, on a host's first
// link, and to collect all claims of any address. Without addresses it only listens.
func (b *Bed) Claims(ctx context.Context, host string, every time.Duration, addresses ...netip.Addr) (*Claims, error) {
	argv := []string{b.Path("bin", "whohas"), "-link", LAN, "-every", every.String()}
	for _, a := range addresses {
		if from := unusedAddress(a).String(); !slices.Contains(argv, from) {
			argv = append(argv, "-from", from)
		}
	}
	for _, a := range addresses {
		argv = append(argv, a.String())
	}
	c := &Claims{cmd: b.Cluster.Command(ctx, host, argv...), done: make(chan struct{})}
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("listen for claims on %s: %w", host, err)
	}
	go func() {
		defer close(c.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var claim whohas.Claim
			if json.Unmarshal(lines.Bytes(), &claim) == nil {
				c.mu.Lock()
				c.list = append(c.list, claim)
				c.mu.Unlock()
			}
		}
	}()
	return c, nil
}

// unusedAddress returns an address of the same network that no host has, as sender of requests.
func unusedAddress(a netip.Addr) netip.Addr {
	if a.Is4() {
		b := a.As4()
		return netip.AddrFrom4([4]byte{b[0], b[1], b[2], 253})
	}
	b := a.As16()
	return netip.AddrFrom16([16]byte(append(b[:8:8], 0, 0, 0, 0, 0, 0, 0x02, 0x53)))
}

// All returns all claims so far.
func (c *Claims) All() []whohas.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]whohas.Claim(nil), c.list...)
}

// Since returns the claims since a time.
func (c *Claims) Since(from time.Time) []whohas.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.list)
	for i > 0 && !c.list[i-1].At.Before(from) {
		i--
	}
	return append([]whohas.Claim(nil), c.list[i:]...)
}

// Stop stops the program on the host and returns all claims.
func (c *Claims) Stop() ([]whohas.Claim, error) {
	if err := c.stdin.Close(); err != nil {
		return nil, fmt.Errorf("stop listening: %w", err)
	}
	<-c.done
	if err := c.cmd.Wait(); err != nil {
		return nil, fmt.Errorf("listen for claims: %w", err)
	}
	return c.All(), nil
}
