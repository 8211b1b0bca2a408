package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// closedGrace is the time for which a node must reject connections of a Service's pods before that counts, and must
	// accept them before it no longer counts. New pods and nodes, new owners, and speakers that restart reject
	// connections for a moment.
	closedGrace = 30 * time.Second
	// closedInterval is the minimum time between two changes of the text of a Service.
	closedInterval = time.Minute
	// recountInterval is the same if only numbers change. A pod that comes or goes changes a number.
	recountInterval = 10 * time.Minute
	// closedPace is the minimum interval for each Service with a text: a fault of all nodes changes all texts.
	closedPace = 60 * time.Millisecond
	// maxClosedNodes bounds the nodes that a text names.
	maxClosedNodes = 3
	// maxClosedReason bounds the reason that a text cites of each node, in bytes.
	maxClosedReason = 512
)

// closedView has the speakers' reports of outgoing connections that they reject. Reports are hints: a report on a
// Service matters only if the Service has egress, and pods on the speaker's node.
type closedView struct {
	// began is the time of the first observation.
	began time.Time
	// reports has what nodes reported last of each Service, by the name of the node.
	reports map[lb.Key]map[string]closedReport
	// texts has the texts of Services.
	texts map[lb.Key]closedText
}

// closedReport is what a node reported last of a Service.
type closedReport struct {
	v1beta1.ClosedEgress
	// counts reports whether the Service shows the report.
	counts bool
	// since is the time from which the node has reported the opposite of counts; zero if it reports the same.
	since time.Time
}

// closedText is what a Service reports about nodes.
type closedText struct {
	text string
	// gist is the text without numbers.
	gist    string
	changed time.Time
}

// observe takes the last reports. The reports of nodes that Kubernetes does not call ready may be old.
func (c *closedView) observe(
	at time.Time,
	r reportTimes,
	states []*v1beta1.SpeakerState,
	notReady map[string]bool,
) {
	if c.began.IsZero() {
		c.began = at
	}

	before := c.reports
	c.reports = map[lb.Key]map[string]closedReport{}
	isValid := map[string]bool{}
	for _, s := range states {
		if notReady[s.Name] || r.isStale(at, s.Name) {
			continue
		}

		isValid[s.Name] = true
		for _, reported := range s.Status.EgressClosed {
			key := lb.ParseKey(reported.Service)
			last := before[key][s.Name]
			last.ClosedEgress = reported
			c.put(key, s.Name, last.settled(at, true))
		}
	}

	for key, nodes := range before {
		for node, last := range nodes {
			_, isReported := c.reports[key][node]
			isWithdrawn := isValid[node] && !isReported
			if !isWithdrawn || !last.counts {
				continue
			}

			next := last.settled(at, false)
			if next.counts {
				c.put(key, node, next)
			}
		}
	}
}

// put stores the report of a node on a Service.
func (c *closedView) put(key lb.Key, node string, r closedReport) {
	if c.reports[key] == nil {
		c.reports[key] = map[string]closedReport{}
	}
	c.reports[key][node] = r
}

// settled returns a report after an observation, which changes whether it counts after closedGrace.
func (r closedReport) settled(at time.Time, isReported bool) closedReport {
	switch {
	case r.counts == isReported:
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = at
	case at.Sub(r.since) >= closedGrace:
		r.counts = isReported
		r.since = time.Time{}
	}

	return r
}

// apply adds the texts of all Services with egress.
func (c *closedView) apply(at time.Time, senders []*egressSender) {
	interval := max(closedInterval, time.Duration(len(c.texts))*closedPace)
	before := c.texts
	c.texts = map[lb.Key]closedText{}

	for _, s := range senders {
		key := s.service.Key
		nodes := c.nodes(s)
		s.isUnsettled = c.isUnsettled(key, nodes)

		next := before[key].changedTo(c.text(key, nodes), at, interval)
		s.closed = next.text
		isRecent := at.Sub(next.changed) < interval
		if next.text != "" || isRecent {
			c.texts[key] = next
		}
	}
}

// nodes returns the nodes with pods of a Service that reported about it, in order.
func (c *closedView) nodes(s *egressSender) []string {
	reports := c.reports[s.service.Key]
	if len(reports) == 0 {
		return nil
	}

	out := map[string]bool{}
	for _, p := range s.pods {
		_, isReported := reports[p.Node]
		if isReported {
			out[p.Node] = true
		}
	}

	return slices.Sorted(maps.Keys(out))
}

// isUnsettled reports whether it is not decided yet whether the reports of these nodes count, because the leader is
// new. Until then the condition that the former leader wrote stays.
func (c *closedView) isUnsettled(key lb.Key, nodes []string) bool {
	return slices.ContainsFunc(nodes, func(node string) bool {
		r := c.reports[key][node]
		return !r.counts && r.since.Equal(c.began)
	})
}

// text returns the text about the nodes whose reports count. It names the first of them.
func (c *closedView) text(key lb.Key, nodes []string) (out closedText) {
	var texts, gists []string
	more := 0
	for _, node := range nodes {
		r := c.reports[key][node]
		if !r.counts {
			continue
		}

		if len(texts) == maxClosedNodes {
			more++
			continue
		}

		reason := strings.Trim(lb.Line(r.Message, maxClosedReason), " .:;,")
		reason = cmp.Or(reason, "no reason is given")
		text := fmt.Sprintf("node %s rejects the connections of %s: %s", node, countPodAddresses(r), reason)
		texts = append(texts, text)
		gists = append(gists, node+" "+reason)
	}

	if more > 0 {
		text := fmt.Sprintf("and so do %s more for connections of its pods", countNodes(more))
		texts = append(texts, text)
	}

	return closedText{
		text: strings.Join(texts, "; "),
		gist: strings.Join(gists, "; "),
	}
}

// countPodAddresses returns the number of pod addresses of a report as text.
func countPodAddresses(r closedReport) string {
	if r.PodAddresses == 1 {
		return "1 pod address"
	}
	return fmt.Sprintf("%d pod addresses", r.PodAddresses)
}

// changedTo returns the text after a run with the desired text want: the present text if it changed less than interval
// ago.
func (t closedText) changedTo(want closedText, at time.Time, interval time.Duration) closedText {
	if t.gist == want.gist {
		interval = max(interval, recountInterval)
	}

	isTooSoon := at.Sub(t.changed) < interval
	if t.text == want.text || isTooSoon {
		return t
	}

	want.changed = at
	return want
}
