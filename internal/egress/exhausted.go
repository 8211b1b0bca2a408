package egress

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// exhaustedPorts is the number of used ports of a slice at which connections to the same destination begin to fail. The
// kernel tries 128 ports from a random one on (nf_nat_core.c), so it fails before the last port is used.
const exhaustedPorts = lb.SlicePorts * 31 / 32

// Times of watchSlices: the shortest time between two looks, and the largest share of the time that they take.
const (
	sliceInterval = 10 * time.Second
	sliceShare    = 50
)

// countFile has the number of conntrack entries in the network namespace.
const countFile = "/proc/sys/net/netfilter/nf_conntrack_count"

// watchSlices updates the result of Exhausted until the context ends.
func (t *Translator) watchSlices(ctx context.Context) error {
	for ctx.Err() == nil {
		start := time.Now()
		t.publishExhausted(t.countSlices())
		nft.Sleep(ctx, max(sliceInterval, sliceShare*time.Since(start)))
	}
	return nil
}

// countSlices returns the addresses whose slice is exhausted. It lists conntrack only if there are so many entries.
func (t *Translator) countSlices() []netip.Addr {
	text, err := os.ReadFile(countFile)
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n < exhaustedPorts {
		return nil
	}

	exhausted := make(map[netip.Addr]bool)
	for slice := range t.slices() {
		if isExhausted(slice) {
			exhausted[slice.Address] = true
		}
	}

	return slices.SortedFunc(maps.Keys(exhausted), netip.Addr.Compare)
}

// slices returns the slices of this node.
func (t *Translator) slices() map[lb.PortSlice]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[lb.PortSlice]bool)
	for _, r := range t.known {
		if r.address.IsValid() {
			out[lb.PortSlice{Address: r.address, First: r.first}] = true
		}
	}
	return out
}

// isExhausted reports whether connections to one destination use almost all ports of a slice.
func isExhausted(slice lb.PortSlice) bool {
	type destination struct {
		protocol byte
		answers  netip.AddrPort
	}
	used := make(map[destination]int)
	full := false
	_ = eachEntry(replyDestination, slice.Address, func(_ []byte, e entry) {
		if slice.Has(e.port) {
			d := destination{e.protocol, e.answers}
			used[d]++
			full = full || used[d] >= exhaustedPorts
		}
	})

	return full
}

// publishExhausted updates the result of Exhausted.
func (t *Translator) publishExhausted(list []netip.Addr) {
	t.mu.Lock()
	same := slices.Equal(t.exhausted, list)
	t.exhausted = list
	t.mu.Unlock()
	if same {
		return
	}

	t.config.Log.Warn("addresses without a free port for some destination", "addresses", list)
	if t.config.Changed != nil {
		t.config.Changed()
	}
}
