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

	"golang.org/x/sys/unix"

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
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if err := exhaustedOf(family, t.slices(), exhausted); err != nil {
			t.config.Log.Warn("cannot count the used ports of addresses", "error", err)
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

// exhaustedOf adds the addresses of a family whose slice is almost used up by connections to one destination.
func exhaustedOf(family uint8, full map[lb.PortSlice]bool, exhausted map[netip.Addr]bool) error {
	type destination struct {
		slice    lb.PortSlice
		protocol byte
		answers  netip.AddrPort
	}
	used := make(map[destination]int)
	return eachEntry(family, translatedOnly(), func(_ []byte, e entry) {
		slice := lb.PortSlice{Address: e.translated, First: e.port &^ (lb.SlicePorts - 1)}
		if !full[slice] {
			return
		}

		d := destination{slice, e.protocol, e.answers}
		used[d]++
		if used[d] >= exhaustedPorts {
			exhausted[slice.Address] = true
		}
	})
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

	if len(list) > 0 {
		t.config.Log.Warn("addresses have no free port for some destination", "addresses", list)
	} else {
		t.config.Log.Info("all addresses have free ports again")
	}

	if t.config.Changed != nil {
		t.config.Changed()
	}
}
