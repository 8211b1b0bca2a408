package node

import (
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/node/facts"
)

// self returns this node's metadata: its links, and what it cannot do. This speaker plans by the metadata that it has
// sent, as all others do, and not by what it learned since.
func (w *Loop) self(in inputs) lb.Member {
	m := facts.Member(in.links, w.sinks.Layer2.Refused(), w.sources.Liveness.SilentLinks())
	m.Stopping, m.API = in.stopping || w.stops.hung.Load(), w.sinks.Owners.API()
	m.LacksProxy = lb.Lacking(in.state.Services, in.state.ProxyPods, w.node)
	m.Unfit = w.unfit(in.sessions)
	return m
}

// unfit returns what this node cannot do.
func (w *Loop) unfit(sessions []lb.Session) (u lb.Unfit) {
	if !w.sources.Boot.Served() {
		u |= lb.Booting
	}
	if w.sources.PodNetwork.Missing() {
		u |= lb.PodsUnreached
	}
	if len(w.sources.Boot.RulesGone()) > 0 {
		u |= lb.RulesGone
	}
	if w.sinks.Filter.failed() || w.options.OtherDataPath {
		u |= lb.Unfiltered
	}

	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		carriesFamily := func(s lb.Session) bool { return s.IsEstablished() && slices.Contains(s.Families, f) }
		if !slices.ContainsFunc(sessions, carriesFamily) {
			u |= lb.SessionlessOf(f)
		}
	}
	return u
}

// problems returns what does not work as it should on this node.
func (w *Loop) problems(links []lb.Interface) (out []lb.Problem) {
	node := lb.Object{Kind: config.KindNode, Name: w.node}
	add := func(reason lb.Reason, format string, args ...any) {
		message := "node " + w.node + " " + fmt.Sprintf(format, args...)
		out = append(out, lb.Problem{Object: node, Reason: reason, Message: message})
	}

	w.addFilterProblems(links, node, add)
	w.addKubeProxyProblems(links, add)
	if w.sources.PodNetwork.Missing() {
		add(
			lb.NetworkUnavailable,
			"leaves what others can announce to them, since no pod of another node answers it: "+
				"its network plugin has not started",
		)
	}
	for _, r := range w.sinks.Layer2.Refused() {
		add(lb.SocketRefused, "cannot answer on link %s, and leaves it to others: %s", r.Link, r.Error)
	}
	for _, text := range w.sinks.Outgoing.problems() {
		add(lb.EgressUnavailable, "%s", text)
	}
	for _, l := range w.sources.Kernel.Missing() {
		out = append(out, l.Problem(node))
	}
	return out
}

// addFilterProblems adds the problems with the packet filter.
func (w *Loop) addFilterProblems(links []lb.Interface, node lb.Object, add func(lb.Reason, string, ...any)) {
	g := w.sinks.Filter
	if g.failed() {
		add(
			lb.FilterNotInForce,
			"cannot keep its packet filter in force and withholds addresses with source ranges: %s",
			g.why(node),
		)
	}
	closed := g.Table.Refused()
	if len(closed) > 0 {
		services := slices.SortedFunc(maps.Keys(closed), lb.Key.Compare)
		add(
			lb.RangesRefused,
			"cannot enforce the source ranges of %s, and closes these Services: %s",
			lb.SomeOf(services),
			closed[services[0]],
		)
	}
	past := link.Bypass(links)
	if past != "" && g.on {
		add(
			lb.FilterNotEnforceable,
			"may carry packets past its packet filter, which restricts none of these: %s",
			past,
		)
	}
}

// addKubeProxyProblems adds the problems with kube-proxy.
func (w *Loop) addKubeProxyProblems(links []lb.Interface, add func(lb.Reason, string, ...any)) {
	if link.LooseARP(links) {
		add(lb.StrictARPMissing, "answers ARP for every address on its link kube-ipvs0")
	}
	if !w.sources.Boot.Served() {
		add(lb.KubeProxyNotReady, "announces nothing until its kube-proxy has served: %s", w.sources.Boot.Waiting())
	}
	gone := w.sources.Boot.RulesGone()
	if len(gone) > 0 {
		add(
			lb.KubeProxyNotReady,
			"leaves what others can announce to them, since kube-proxy's rules of %s are gone from its kernel, as "+
				"after \"nft flush ruleset\", and kube-proxy may take an hour to notice",
			lb.SomeOf(gone),
		)
	}
}
