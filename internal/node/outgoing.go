package node

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/egress"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Outgoing sets the tables of outgoing connections. If this node may not translate, it rejects the connections of the
// pods that should send from an address.
type Outgoing struct {
	*egress.Translator
	// off is why this node translates nothing by its settings; "" if it does.
	off string
	// bypassed reports whether packets of pods may not reach the kernel's tables, so that these are removed.
	bypassed   bool
	kernel     *kernel.Monitor
	exceptions []netip.Prefix
	// sources are the sources that were set last.
	sources []lb.EgressSource
}

// NewOutgoing returns an Outgoing. It kicks when pods lose or get the right to send.
func NewOutgoing(log *slog.Logger, s Settings, lacks *kernel.Monitor, links func() []lb.Interface,
	kick func()) *Outgoing {
	return &Outgoing{
		Translator: egress.New(egress.Config{Log: log, Links: links, Changed: kick}),
		off:        s.EgressOff(),
		bypassed:   s.Options.OtherDataPath,
		kernel:     lacks,
		exceptions: s.EgressExceptions,
	}
}

// EgressOff returns why a speaker with these settings translates no outgoing connections; "" if it does.
func (s Settings) EgressOff() string {
	switch {
	case s.Options.OtherDataPath:
		return "dataPath is Other: another program than kube-proxy delivers packets"
	case !s.Relay:
		return "speaker.relay is false: nodes may not pass on packets with foreign sources"
	case !s.Options.Filters():
		return "speaker.filter.enabled is false"
	}
	return ""
}

// sliceTime is how long a node that alone does not hear the API server uses its slices. The controller may give them to
// other nodes once they have rested for ipam.SliceRest.
const sliceTime = 4 * time.Minute

// lacks returns why no pod of this node may send from an address, for each family in which none may. isBehind reports
// whether other nodes hear the API server and this node does not, for age.
func (o *Outgoing) lacks(isFiltered, isBehind bool, age time.Duration) map[lb.Family]string {
	out := map[lb.Family]string{}
	for f, feature := range map[lb.Family]kernel.Feature{lb.IPv4: kernel.EgressIPv4, lb.IPv6: kernel.EgressIPv6} {
		switch {
		case o.off != "":
			out[f] = o.off
		case !isFiltered:
			out[f] = "the packet filter of the node is not in force"
		case isBehind && age > sliceTime:
			out[f] = "the node has not heard the API server, and its ports may belong to another node"
		case o.kernel.Lacks(feature):
			out[f] = "the kernel of the node lacks what it needs for " + string(f)
		}
	}
	return out
}

// set makes the kernel translate what the plan wants.
func (o *Outgoing) set(e lb.Egress, s lb.State, speakers map[lb.MAC]bool) error {
	o.sources = e.Sources
	if o.bypassed {
		return o.Remove()
	}
	if o.off != "" {
		e.Passes = nil
	}

	d := egress.Desired{Egress: e, Speakers: speakers}
	if len(e.Sources) > 0 {
		d.Inside = slices.Concat(e.Inside, o.exceptions)
		d.Nodes = addressesOf(s)
	}
	o.Set(d)
	return nil
}

// addressesOf returns the addresses of nodes and of their links, in order. Routes of IPv6 name link-local addresses.
func addressesOf(s lb.State) (out []netip.Addr) {
	for _, n := range s.Nodes {
		out = append(out, n.Addresses...)
	}
	for _, links := range s.Links {
		for _, l := range links {
			out = append(out, l.Addresses...)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// problems returns sentences about pods of this node that may not send, and about addresses without free ports. It
// leaves out families in which a Service has no address, as closings does.
func (o *Outgoing) problems() (out []string) {
	faults := o.Faults()
	closed, first := 0, ""
	for _, s := range o.sources {
		why := cmp.Or(s.Closed, faults[s.Pod], s.Confined)
		if why == "" || !s.Address.IsValid() {
			continue
		}
		closed++
		if first == "" {
			first = fmt.Sprintf("%s of Service %s: %s", s.Pod, s.Service, why)
		}
	}

	if closed > 0 {
		out = append(out, fmt.Sprintf(
			"rejects the outgoing connections of %d addresses of pods, first of %s", closed, first))
	}
	if exhausted := o.Exhausted(); len(exhausted) > 0 {
		out = append(out, fmt.Sprintf(
			"has no free ports for more outgoing connections from %s to one destination", lb.SomeOf(exhausted)))
	}
	return out
}

// closings returns the Services of whose pods this node rejects connections, ordered by Service.
func (o *Outgoing) closings() []lb.EgressClosing {
	return closings(o.sources, o.Faults(), o.Exhausted())
}

// closings returns the Services with sources that are closed or confined, that have a fault, or that lack free ports.
// It leaves out families in which a Service has no address: they are closed on every node, and the controller reports
// them itself.
func closings(
	sources []lb.EgressSource,
	faults map[netip.Addr]string,
	exhausted []netip.Addr,
) (out []lb.EgressClosing) {
	byService := map[lb.Key]*lb.EgressClosing{}
	for _, s := range sources {
		why := cmp.Or(s.Closed, faults[s.Pod], s.Confined)
		if why == "" && slices.Contains(exhausted, s.Address) {
			why = fmt.Sprintf("no port of %s is free for more connections to one destination", s.Address)
		}
		if why == "" || !s.Address.IsValid() {
			continue
		}

		if byService[s.Service] == nil {
			byService[s.Service] = &lb.EgressClosing{Service: s.Service, Why: why}
		}
		byService[s.Service].Addresses++
	}

	for _, key := range slices.SortedFunc(maps.Keys(byService), lb.Key.Compare) {
		out = append(out, *byService[key])
	}
	return out
}
