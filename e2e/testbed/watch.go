package testbed

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
)

// Watch probes addresses from a host during an event in the cluster.
type Watch struct {
	names   []string
	streams []*Stream
}

// Seen is the results of one prober.
type Seen struct {
	// Name of the probed address and protocol.
	Name    string
	Results []probe.Result
}

// steady is the number of answers that show that an address is served.
const steady = 100

// Watch starts to probe addresses over a protocol, with further arguments for the probers,
// and waits until all answer.
func (b *Bed) Watch(
	ctx context.Context,
	host, protocol string,
	addresses []netip.Addr,
	args ...string,
) (*Watch, error) {
	w := &Watch{}
	for _, a := range addresses {
		family := "IPv4"
		if a.Is6() {
			family = "IPv6"
		}
		s, err := b.Probe(ctx, host, protocol, a, args...)
		if err != nil {
			return nil, errors.Join(err, w.abandon())
		}
		w.names, w.streams = append(w.names, protocol+" over "+family), append(w.streams, s)
	}
	if err := w.Recovered(ctx, 20*time.Second); err != nil {
		return nil, errors.Join(err, w.abandon())
	}
	return w, nil
}

// Join adds the probers of another Watch.
func (w *Watch) Join(other *Watch) *Watch {
	return &Watch{append(w.names, other.names...), append(w.streams, other.streams...)}
}

func (w *Watch) abandon() error {
	_, err := w.Stop()
	return err
}

// Recovered waits until every address has answered steadily since the call.
func (w *Watch) Recovered(ctx context.Context, limit time.Duration) error {
	start := time.Now()
	for _, s := range w.streams {
		if err := s.WaitGood(ctx, limit, start, steady); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends the probers and returns their results.
func (w *Watch) Stop() ([]Seen, error) {
	var out []Seen
	var errs []error
	for i, s := range w.streams {
		results, err := s.Stop()
		errs = append(errs, err)
		out = append(out, Seen{w.names[i], results})
	}
	return out, errors.Join(errs...)
}

// Failed counts the probes that got no answer.
func (s Seen) Failed() int {
	n := 0
	for _, o := range probe.Outages(s.Results) {
		n += o.Failed
	}
	return n
}

// inFlight is how long before a change of next hops a request may have begun that the change broke: on busy cores it
// takes up to 60 ms.
const inFlight = 100 * time.Millisecond

// seenLate is how much later than the kernel a watch may note a change on busy cores: a connection may be reset in
// between.
const seenLate = 20 * time.Millisecond

// FailedApart counts the probes that got no answer: those that were under way when a next hop changed, since routers
// then lead flows to nodes that do not know them, and the rest.
func (s Seen) FailedApart(changes []RouteChange) (underWay, rest int) {
	for _, r := range s.Results {
		switch {
		case r.OK:
		case slices.ContainsFunc(changes, func(c RouteChange) bool {
			return !c.At.Before(r.Start) && !c.At.After(r.End().Add(seenLate)) && c.At.Sub(r.Start) < inFlight
		}):
			underWay++
		default:
			rest++
		}
	}
	return underWay, rest
}

// Gap is the longest time without an answer, 0 if no probe failed.
func (s Seen) Gap() time.Duration {
	longest, _ := probe.Longest(probe.Outages(s.Results))
	return longest.Length()
}

// LastFailed returns the start of the last probe without an answer; the zero time if there is none.
func (s Seen) LastFailed() time.Time {
	var last time.Time
	for _, r := range s.Results {
		if !r.OK && r.Start.After(last) {
			last = r.Start
		}
	}
	return last
}

// LastFailed returns the start of the last probe without an answer so far; the zero time
// if there is none.
func (w *Watch) LastFailed() time.Time {
	var last time.Time
	for _, s := range w.streams {
		if failed := (Seen{Results: s.Results()}).LastFailed(); failed.After(last) {
			last = failed
		}
	}
	return last
}
