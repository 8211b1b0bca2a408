package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// probeInterval is between two probes, wireTime how long machines on one link have to answer.
const probeInterval, wireTime = time.Second, 300 * time.Millisecond

// probes serves POST /debug/probe?service=NAMESPACE/NAME, the step of kubectl holdfast that says which machines answer for its
// addresses on this node's links. Whoever may forward a port to the pod may ask: so it asks only about Services that this node's
// plan serves, one at a time, and one a second.
func (w *syncer) probes() http.HandlerFunc {
	turn := make(chan struct{}, 1)
	return func(out http.ResponseWriter, r *http.Request) {
		select {
		case turn <- struct{}{}:
			defer time.AfterFunc(probeInterval, func() { <-turn })
		default:
			http.Error(out, "one probe a second", http.StatusTooManyRequests)
			return
		}
		step := struct{ Step, Verdict, Text string }{"wire at " + w.node, "ok", ""}
		asked := map[netip.Addr]bool{}
		for _, f := range w.last.Load().plan().Filter.Frontends {
			if f.Service.String() != r.URL.Query().Get("service") || asked[f.Address] {
				continue
			}
			asked[f.Address] = true
			for _, l := range w.links.Links() {
				if !l.CanAnnounce() || !slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Contains(f.Address) }) {
					continue
				}
				macs, err := w.layer2.WhoHas(r.Context(), l, f.Address, wireTime)
				text, good := named(macs, w.macNodes())
				if err != nil {
					text, good = "nobody that is known: "+err.Error(), false
				}
				if step.Text += fmt.Sprintf("; for %s on link %s answers %s", f.Address, l.Name, text); !good {
					step.Verdict = "problem"
				}
			}
		}
		if step.Text = strings.TrimPrefix(step.Text, "; "); step.Text == "" {
			http.Error(out, "no Service of this name has an address in a subnet of this node's links", http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(out).Encode(step) // the asker may be gone
	}
}

// macNodes maps the MACs of all speakers' links to their nodes.
func (w *syncer) macNodes() map[lb.MAC]string {
	nodes := map[lb.MAC]string{}
	if m := w.membership.members.Load(); m != nil {
		for node, member := range m.Metadata() {
			for _, l := range member.Links {
				nodes[l.MAC] = "node " + node
			}
		}
	}
	return nodes
}

// named names machines by their nodes, and reports whether they are one node.
func named(macs map[lb.MAC]bool, nodes map[lb.MAC]string) (text string, one bool) {
	owners, list := map[string]bool{}, []string{}
	for mac := range macs {
		owner := cmp.Or(nodes[mac], "no speaker")
		owners[owner] = true
		list = append(list, fmt.Sprintf("%s of %s", mac, owner))
	}
	slices.Sort(list)
	return cmp.Or(strings.Join(list, " and "), "no machine"), len(owners) == 1 && !owners["no speaker"]
}
