package main

import (
	"fmt"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// self returns this node's metadata: its links, and what it cannot do. This speaker plans by what it has sent, like all
// others, and not by newer knowledge.
func (w *syncer) self(in inputs) lb.Member {
	m := localMember(in.links, w.layer2.Refused(), w.liveness.SilentLinks())
	m.Stopping, m.API = in.stopping || w.hung.Load(), w.owners.contact.API()
	if !w.boot.Served() {
		m.Unfit |= lb.Booting
	}
	if w.filter.failed() {
		m.Unfit |= lb.Unfiltered
	}
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if !slices.ContainsFunc(in.sessions, func(s bgp.Session) bool { return s.State == bgp.Established && slices.Contains(s.Families, f) }) {
			m.Unfit |= lb.SessionlessOf(f)
		}
	}
	return m
}

// unfitProblems returns what keeps the node from announcing, except for the filter.
func (w *syncer) unfitProblems() []lb.Problem {
	var out []lb.Problem
	object := lb.Object{Kind: config.KindNode, Name: w.node}
	if !w.boot.Served() {
		out = append(out, lb.Problem{Object: object, Reason: lb.KubeProxyNotReady,
			Message: fmt.Sprintf("node %s announces nothing until its kube-proxy has served: %s", w.node, w.boot.Waiting())})
	}
	return append(out, refusedProblems(object, w.layer2.Refused())...)
}

func refusedProblems(node lb.Object, refused []lb.Refusal) []lb.Problem {
	var out []lb.Problem
	for _, r := range refused {
		out = append(out, lb.Problem{Object: node, Reason: lb.SocketRefused,
			Message: fmt.Sprintf("node %s cannot answer on link %s, and leaves it to others: %s", node.Name, r.Link, r.Error)})
	}
	return out
}
