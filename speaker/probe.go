package main

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
	"golang.org/x/time/rate"
)

const (
	// probeInterval is between two probes, of which each asks maxKnocks ports.
	probeInterval = time.Second
	maxKnocks     = 16
	// wireTime is how long machines on one link have to answer, knockTime how long a port has.
	wireTime, knockTime = 300 * time.Millisecond, time.Second
)

// probed is the step of kubectl holdfast that says what the wire answers.
type probed struct {
	Step, Verdict, Text string
	Details             []string `json:",omitempty"`
	// Do is what to do about it.
	Do string `json:",omitempty"`
}

// knock is one port to ask, at a machine that has its address.
type knock struct {
	lb.Frontend
	link lb.Interface
	mac  lb.MAC
}

// probes serves POST /debug/probe?service=NAMESPACE/NAME: which machines answer for its addresses on this node's links,
// and what its TCP ports answer there. Whoever may forward a port to the pod may ask: so it asks only about frontends
// of this node's plan, and about one Service a second.
func (w *syncer) probes() http.HandlerFunc {
	turns := rate.NewLimiter(rate.Every(probeInterval), 1)
	return func(out http.ResponseWriter, r *http.Request) {
		if !turns.Allow() {
			http.Error(out, "one probe a second", http.StatusTooManyRequests)
			return
		}
		step, knocks := w.askOwners(r.Context(), r.URL.Query().Get("service"))
		if step.Text == "" {
			http.Error(
				out,
				"no Service of this name has an address in a subnet of this node's links; what is only routed no frame can ask",
				http.StatusNotFound,
			)
			return
		}
		w.askPorts(r.Context(), &step, knocks)
		_ = json.NewEncoder(out).Encode(step) // the asker may be gone
	}
}

// askOwners asks for the addresses of a Service on the links of their subnets, and returns the ports to ask where
// machines answered.
func (w *syncer) askOwners(ctx context.Context, service string) (step probed, knocks []knock) {
	step = probed{Step: "wire at " + w.node, Verdict: "ok"}
	var asked netip.Addr
	var owners []knock
	for f := range w.last.Load().plan().Filter.Each() { // ordered by address
		if f.Service.String() != service {
			continue
		}
		if f.Address != asked {
			asked, owners = f.Address, w.askOwner(ctx, f.Address, &step)
		}
		for _, k := range owners {
			if k.Frontend = *f; f.Protocol == "TCP" {
				knocks = append(knocks, k)
			}
		}
	}
	step.Text = strings.TrimPrefix(step.Text, "; ")
	return step, knocks
}

// askOwner adds to a step which machines answer for an address, and returns them.
func (w *syncer) askOwner(ctx context.Context, address netip.Addr, step *probed) (owners []knock) {
	for _, l := range w.links.Links() {
		if !l.CanAnnounce() ||
			!slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Contains(address) }) {
			continue
		}
		macs, err := w.layer2.WhoHas(ctx, l, address, wireTime)
		text, good := named(macs, w.membership.speakers())
		if err != nil {
			text, good = "no machine that is known: "+err.Error(), false
		}
		if step.Text += fmt.Sprintf("; for %s on link %s answers %s", address, l.Name, text); !good {
			step.Verdict = "problem"
			step.Do = cmp.Or(step.Do, w.ownersRemedy(address, macs))
		}
		for mac := range macs {
			owners = append(owners, knock{link: l, mac: mac})
		}
	}
	return owners
}

// ownersRemedy returns what to do about the wrong machines that answer for an address.
func (w *syncer) ownersRemedy(address netip.Addr, macs map[lb.MAC]bool) string {
	nodes := w.membership.speakers()
	for mac := range macs {
		if nodes[mac] == "" {
			return lb.AddressConflict.Remedy()
		}
	}
	if len(macs) == 0 {
		return fmt.Sprintf(
			"look at the log of the speaker that should announce %s, and at the switch between it and %s",
			address,
			w.node,
		)
	}
	return "ask again after some seconds: while an address moves two nodes answer for a moment; then look at the logs of both speakers"
}

// portRemedy returns what to do about a port that is not open at a machine.
func portRemedy(k knock, answer layer2.Answer, machine string) string {
	port := fmt.Sprintf("%s port %d", k.Protocol, k.Port)
	switch answer {
	case layer2.Refused:
		return "let a process in the pods listen on the target port of " + port + ": connections reach " + machine + " and are refused"
	case layer2.Rejected:
		return "find what rejects " + port + " at " + machine + ": chains of other programs in `nft list ruleset` and `iptables-save` there, " +
			"or kube-proxy, if no pod is ready"
	case layer2.Silent:
		return "find what drops " + port + ": a NetworkPolicy of the pods, chains of other programs at " + machine + " (`nft list ruleset` there), " +
			"or a firewall between nodes and pods"
	}
	return "look at the log of this speaker, which could not ask for " + port
}

// askPorts adds what ports answer, and says of closed ones before who answers for the addresses. Source ranges may
// refuse this node, which is no fault.
func (w *syncer) askPorts(ctx context.Context, step *probed, knocks []knock) {
	var group sync.WaitGroup
	step.Details = make([]string, min(len(knocks), maxKnocks))
	remedies, nodes := make([]string, len(step.Details)), w.membership.speakers()
	for i, k := range knocks[:len(step.Details)] {
		group.Go(func() {
			answer, err := w.layer2.Knock(ctx, k.link, k.mac, netip.AddrPortFrom(k.Address, k.Port), knockTime)
			if err != nil {
				answer = layer2.Answer("was not asked: " + err.Error())
			}
			if answer != layer2.Open && k.HasRanges() {
				answer += "; its source ranges may leave this node out"
			} else if answer != layer2.Open {
				remedies[i] = portRemedy(k, answer, cmp.Or(nodes[k.mac], "the machine with MAC "+k.mac.String()))
			}
			step.Details[i] = fmt.Sprintf("TCP port %d of %s %s", k.Port, k.Address, answer)
		})
	}
	group.Wait()
	if i := slices.IndexFunc(remedies, func(do string) bool { return do != "" }); i >= 0 {
		step.Verdict, step.Text = "problem", step.Details[i]+"; "+step.Text
		step.Do = cmp.Or(step.Do, remedies[i])
	}
	if more := len(knocks) - maxKnocks; more > 0 {
		step.Details = append(step.Details, fmt.Sprintf("%d more were not asked", more))
	}
}

// named names machines by their nodes, and reports whether they are one node.
func named(macs map[lb.MAC]bool, nodes map[lb.MAC]string) (text string, one bool) {
	owners, list := map[string]bool{}, []string{}
	for mac := range macs {
		owners[nodes[mac]] = true
		list = append(list, fmt.Sprintf("%s of %s", mac, cmp.Or(nodes[mac], "no speaker")))
	}
	slices.Sort(list)
	return cmp.Or(strings.Join(list, " and "), "no machine"), len(owners) == 1 && !owners[""]
}
