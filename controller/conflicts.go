package main

import (
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
	"github.com/holdfast-lb/holdfast/internal/nodelifecycle"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// mostConflicts bounds the addresses that a pool's condition names.
	mostConflicts = 8
	// staleTime is when a speaker's report expires: each writes every ten minutes, and
	// one that was taken off its node does not withdraw its last.
	staleTime = 25 * time.Minute
	// conflictsInterval is the least time between two looks: a machine that changes its
	// MAC all the time must not have us write all the time.
	conflictsInterval = 5 * time.Second
)

// conflict is a machine that is not ours and claims an address of ours, and the node that says so.
type conflict struct {
	mac, node string
}

// conflicts are the addresses of ours that others claim, as the speakers report. They have
// a loop of their own: SpeakerStates hold much else, which pools need not know.
type conflicts struct {
	cluster *k8s.Cluster
	// reports of each speaker, as read last.
	reports map[string]lastReport
	last    atomic.Pointer[map[netip.Addr]conflict]
}

// lastReport is what tells a new report of a speaker from its last, and when that came by our clock.
type lastReport struct {
	observed time.Time
	at       time.Time
}

// refresh reads the SpeakerStates, and reports whether there are other conflicts than before.
func (c *conflicts) refresh() bool {
	now := c.read(time.Now(), c.cluster.SpeakerStates(), nodelifecycle.NotReady(c.cluster.Objects().Nodes))
	before := c.last.Swap(&now)
	return before == nil || !maps.Equal(*before, now)
}

// forget ends a time as the leader.
func (c *conflicts) forget() { c.last.Store(nil) }

// all returns the conflicts as read last; false before they were read.
func (c *conflicts) all() (map[netip.Addr]conflict, bool) {
	if last := c.last.Load(); last != nil {
		return *last, true
	}
	return nil, false
}

// read returns what those speakers report whose nodes are not given up and that write
// now and then. Where two report one address it takes the first by name.
func (c *conflicts) read(now time.Time, states []*v1beta1.SpeakerState, notReady map[string]bool) map[netip.Addr]conflict {
	before := c.reports
	c.reports = make(map[string]lastReport, len(states))
	out := map[netip.Addr]conflict{}
	for _, s := range states {
		r, known := before[s.Name]
		if o := s.Status.Observed; o != nil && (!known || !o.Time.Equal(r.observed)) {
			r = lastReport{o.Time, now}
		}
		c.reports[s.Name] = r
		if notReady[s.Name] || now.Sub(r.at) >= staleTime {
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
	var messages []string
	more := 0
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		in := slices.ContainsFunc(ranges, func(r lb.Range) bool { return r.Contains(a) })
		if !in && !slices.ContainsFunc(u.Retained, func(r lb.Retention) bool { return r.Address == a }) {
			continue
		}
		if len(messages) == mostConflicts {
			more++
			continue
		}
		messages = append(messages, fmt.Sprintf("%s is claimed by %s, seen by node %s", a, all[a].mac, all[a].node))
	}
	if len(messages) == 0 {
		return c, false
	}
	c.Message = strings.Join(messages, "; ")
	if more > 0 {
		c.Message += fmt.Sprintf("; and %d more", more)
	}
	c.Message += ": free them there, or take them out of spec.addresses"
	return c, true
}
