// Package probe asks, for a user of kubectl holdfast, which machines answer on the wire for the addresses of a Service,
// and what its ports answer there.
//
//	page := probe.New(probe.Config{Node: "w1", Plan: loop.Plan, ...})
//	mux.Handle("POST /debug/probe", page)  // ?service=NAMESPACE/NAME in, a step of kubectl holdfast out
//
// The package changes nothing.
package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"golang.org/x/time/rate"
)

const (
	// probeInterval is the time between two probes. Each of them asks maxKnocks ports at most.
	probeInterval = time.Second
	maxKnocks     = 16
	// wireTime is how long machines on one link have to answer, and knockTime how long a port has.
	wireTime, knockTime = 300 * time.Millisecond, time.Second
)

// probed is the step of kubectl holdfast about the answers on the wire.
type probed struct {
	Step, Verdict, Text string
	Details             []string `json:",omitempty"`
	// Do says what to do about a problem.
	Do string `json:",omitempty"`
}

// knock is one port to ask, at a machine that answers for its address.
type knock struct {
	lb.Frontend
	link lb.Interface
	mac  lb.MAC
}

// Config configures a Page.
type Config struct {
	// Node is the name of this node.
	Node   string
	Links  func() []lb.Interface
	Layer2 Layer2
	// Speakers returns the names of the nodes by the MACs of their links.
	Speakers func() map[lb.MAC]string
	// Plan returns the last plan of this node.
	Plan func() plan.Plan
}

// Layer2 is the part of layer2.Responder that asks.
type Layer2 interface {
	WhoHas(ctx context.Context, on lb.Interface, address netip.Addr, within time.Duration) (map[lb.MAC]bool, error)
	ProbePort(
		ctx context.Context,
		on lb.Interface,
		mac lb.MAC,
		at netip.AddrPort,
		within time.Duration,
	) (layer2.PortState, error)
}

// Page serves POST /debug/probe?service=NAMESPACE/NAME. The answer says which machines answer for the Service's
// addresses on this node's links, and what its TCP ports answer there. Every user with the right to forward ports to
// the pod may ask. So it asks only about frontends of this node's plan, and about one Service a second.
type Page struct {
	config Config
	turns  *rate.Limiter
}

// New returns a Page.
func New(c Config) *Page {
	return &Page{config: c, turns: rate.NewLimiter(rate.Every(probeInterval), 1)}
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if !p.turns.Allow() {
		http.Error(out, "one probe a second", http.StatusTooManyRequests)
		return
	}
	step, knocks := p.askOwners(r.Context(), r.URL.Query().Get("service"))
	if step.Text == "" {
		http.Error(
			out,
			"no Service of this name has an address in a subnet of this node's links; frames cannot ask for "+
				"other addresses",
			http.StatusNotFound,
		)
		return
	}
	p.askPorts(r.Context(), &step, knocks)
	_ = json.NewEncoder(out).Encode(step) // the asker may be gone
}

// askOwners asks for the addresses of a Service on the links of their subnets. It returns the ports to ask, at the
// machines that answered.
func (p *Page) askOwners(ctx context.Context, service string) (step probed, knocks []knock) {
	step = probed{Step: "wire at " + p.config.Node, Verdict: "ok"}
	var asked netip.Addr
	var owners []knock
	for f := range p.config.Plan().Filter.Each() { // ordered by address
		if f.Service.String() != service {
			continue
		}
		if f.Address != asked {
			asked, owners = f.Address, p.askOwner(ctx, f.Address, &step)
		}
		if f.Protocol != "TCP" {
			continue
		}
		for _, k := range owners {
			k.Frontend = *f
			knocks = append(knocks, k)
		}
	}
	step.Text = strings.TrimPrefix(step.Text, "; ")
	return step, knocks
}

// askOwner adds to a step which machines answer for an address, and returns them.
func (p *Page) askOwner(ctx context.Context, address netip.Addr, step *probed) (owners []knock) {
	for _, l := range p.config.Links() {
		if !l.CanAnnounce() ||
			!slices.ContainsFunc(l.Prefixes, func(subnet netip.Prefix) bool { return subnet.Contains(address) }) {
			continue
		}
		macs, err := p.config.Layer2.WhoHas(ctx, l, address, wireTime)
		text, good := named(macs, p.config.Speakers())
		if err != nil {
			text, good = "no known machine: "+err.Error(), false
		}
		step.Text += fmt.Sprintf("; for %s on link %s answers %s", address, l.Name, text)
		if !good {
			step.Verdict = "problem"
			step.Do = cmp.Or(step.Do, p.ownersRemedy(address, macs))
		}
		for mac := range macs {
			owners = append(owners, knock{link: l, mac: mac})
		}
	}
	return owners
}

// ownersRemedy returns what to do about the wrong machines that answer for an address.
func (p *Page) ownersRemedy(address netip.Addr, macs map[lb.MAC]bool) string {
	nodes := p.config.Speakers()
	for mac := range macs {
		if nodes[mac] == "" {
			return lb.AddressConflict.Remedy()
		}
	}
	if len(macs) == 0 {
		return fmt.Sprintf(
			"look at the log of the speaker that should announce %s, and at the switch between it and %s",
			address,
			p.config.Node,
		)
	}
	return "ask again after some seconds: while an address moves two nodes answer for a moment; " +
		"then look at the logs of both speakers"
}

// portRemedy returns what to do about a port that is not open at a machine.
func portRemedy(k knock, answer layer2.PortState, machine string) string {
	port := fmt.Sprintf("%s port %d", k.Protocol, k.Port)
	switch answer {
	case layer2.PortRefuses:
		return "let a process in the pods listen on the target port of " + port + ": connections reach " + machine +
			" and are refused"
	case layer2.PortRejected:
		return "find what rejects " + port + " at " + machine + ": chains of other programs in `nft list ruleset` " +
			"and `iptables-save` there, or kube-proxy, if no pod is ready"
	case layer2.PortUnanswered:
		return "find what drops " + port + ": a NetworkPolicy of the pods, chains of other programs at " + machine +
			" (`nft list ruleset` there), " +
			"or a firewall between nodes and pods"
	}
	return "look at the log of this speaker, which could not ask for " + port
}

// askPorts asks ports, and adds their answers. Ports that are not open come first in the text. Source ranges may
// exclude this node, which is no problem.
func (p *Page) askPorts(ctx context.Context, step *probed, knocks []knock) {
	var group sync.WaitGroup
	step.Details = make([]string, min(len(knocks), maxKnocks))
	remedies, nodes := make([]string, len(step.Details)), p.config.Speakers()
	for i, k := range knocks[:len(step.Details)] {
		group.Go(func() {
			port := netip.AddrPortFrom(k.Address, k.Port)
			answer, err := p.config.Layer2.ProbePort(ctx, k.link, k.mac, port, knockTime)
			if err != nil {
				answer = layer2.PortState("was not asked: " + err.Error())
			}
			if answer != layer2.PortOpen && k.HasRanges() {
				answer += "; its source ranges may leave this node out"
			} else if answer != layer2.PortOpen {
				remedies[i] = portRemedy(k, answer, cmp.Or(nodes[k.mac], "the machine with MAC "+k.mac.String()))
			}
			step.Details[i] = fmt.Sprintf("TCP port %d of %s %s", k.Port, k.Address, answer)
		})
	}
	group.Wait()

	i := slices.IndexFunc(remedies, func(do string) bool { return do != "" })
	if i >= 0 {
		step.Verdict, step.Text = "problem", step.Details[i]+"; "+step.Text
		step.Do = cmp.Or(step.Do, remedies[i])
	}
	more := len(knocks) - maxKnocks
	if more > 0 {
		step.Details = append(step.Details, fmt.Sprintf("%d more were not asked", more))
	}
}

// named returns the names of machines by their nodes, and reports whether all of them are one node.
func named(macs map[lb.MAC]bool, nodes map[lb.MAC]string) (text string, one bool) {
	owners, list := map[string]bool{}, []string{}
	for mac := range macs {
		owners[nodes[mac]] = true
		list = append(list, fmt.Sprintf("%s of %s", mac, cmp.Or(nodes[mac], "no speaker")))
	}
	slices.Sort(list)
	return cmp.Or(strings.Join(list, " and "), "no machine"), len(owners) == 1 && !owners[""]
}
