package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// mostConflicts bounds the addresses that a pool's condition names.
	mostConflicts = 8
	// staleTime is when what a speaker wrote counts no more: each writes every ten
	// minutes, and one that was taken off its node does not take its last word back.
	staleTime = 25 * time.Minute
	// conflictsInterval is the least time between two looks: a machine that changes its
	// MAC all the time must not have us write all the time.
	conflictsInterval = 5 * time.Second
)

// conflict is a machine that is not ours and claims an address of ours, and the node that says so.
type conflict struct {
	mac, node string
}

// conflicts follows what the speakers say of addresses that others claim. It is a
// loop of its own: they write of much else, which pools need not hear of.
type conflicts struct {
	cluster *k8s.Cluster
	// changed is called when there are others than before.
	changed func()
	// words are when each speaker's latest word was new, by our clock.
	words map[string]word
	last  atomic.Pointer[map[netip.Addr]conflict]
}

// word tells what a speaker wrote from what it wrote before.
type word struct {
	observed time.Time
	at       time.Time
}

func (c *conflicts) sync(context.Context) error {
	now := c.read(time.Now(), c.cluster.SpeakerStates(), givenUp(c.cluster.Objects().Nodes))
	if before := c.last.Swap(&now); before == nil || !maps.Equal(*before, now) {
		c.changed()
	}
	return nil
}

// begin forgets what an earlier time as the leader left.
func (c *conflicts) begin() { c.last.Store(nil) }

// all returns the conflicts as read last; false before they were read.
func (c *conflicts) all() (map[netip.Addr]conflict, bool) {
	if last := c.last.Load(); last != nil {
		return *last, true
	}
	return nil, false
}

// read returns what speakers say that still have a say: their nodes are not given up,
// and they write now and then. Of two who speak of one address it takes the first by name.
func (c *conflicts) read(now time.Time, states []*v1beta1.SpeakerState, gone map[string]bool) map[netip.Addr]conflict {
	before := c.words
	c.words = make(map[string]word, len(states))
	out := map[netip.Addr]conflict{}
	for _, s := range states {
		w, known := before[s.Name]
		if o := s.Status.Observed; o != nil && (!known || !o.Time.Equal(w.observed)) {
			w = word{o.Time, now}
		}
		c.words[s.Name] = w
		if gone[s.Name] || now.Sub(w.at) >= staleTime {
			continue
		}
		for _, a := range s.Status.Conflicts {
			address, err := netip.ParseAddr(a.Address)
			mac, err2 := net.ParseMAC(a.MAC)
			if first, taken := out[address]; err != nil || err2 != nil || taken && first.node < s.Name {
				continue
			}
			out[address] = conflict{mac.String(), s.Name}
		}
	}
	return out
}

// free is the condition on the addresses of a pool that others claim, where there
// are such. What is held although it was cut from the pool counts too.
func free(ranges []lb.Range, u ipam.Usage, all map[netip.Addr]conflict) (metav1.Condition, bool) {
	c := metav1.Condition{Type: v1beta1.ConditionAddressesFree, Status: metav1.ConditionFalse, Reason: string(lb.AddressConflict)}
	var said []string
	more := 0
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		in := slices.ContainsFunc(ranges, func(r lb.Range) bool { return r.Contains(a) })
		if !in && !slices.ContainsFunc(u.Retained, func(r lb.Retention) bool { return r.Address == a }) {
			continue
		}
		if len(said) == mostConflicts {
			more++
			continue
		}
		said = append(said, fmt.Sprintf("%s is claimed by %s, seen by node %s", a, all[a].mac, all[a].node))
	}
	if len(said) == 0 {
		return c, false
	}
	c.Message = strings.Join(said, "; ")
	if more > 0 {
		c.Message += fmt.Sprintf("; and %d more", more)
	}
	c.Message += ": free them there, or take them out of spec.addresses"
	return c, true
}
