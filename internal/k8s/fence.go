package k8s

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// renewInterval is the time between the starts of two renewals of the Lease.
	renewInterval = 500 * time.Millisecond
	// renewTimeout bounds a renewal, and any other read or write of the Lease. A leader whose requests take longer
	// could not finish a write within writeTime.
	renewTimeout = time.Second
	// writeTime is the time after the start of its last successful renewal for which a leader may write.
	writeTime = 2 * time.Second
	// writeMargin is the part of writeTime that must be left when a write begins.
	writeMargin = 100 * time.Millisecond
	// landTime is the time in which a write may still reach etcd after its client gave it up, or after the API server's
	// own deadline. The API server cancels it then, but etcd may already have it.
	landTime = 500 * time.Millisecond
)

// errLeaseLapsed means that the Lease was not renewed in time, so another process may be about to take it.
var errLeaseLapsed = errors.New("not written: the Lease is not renewed")

// leaderTerm is the time from taking the Lease until its loss. All writes of a leader belong to the term in which they
// were decided: they carry its context.
//
// A standby may take the Lease writeTime and landTime after the record that it read was written, which was no earlier
// than the start of the renewal. By then all writes of this term have landed or never will. No write begins or
// continues after writeTime by our clock. The API server ends the writes of a client that is gone at the same time by
// its own clock.
//
// Three kinds of writes can still land too late: a write of a process that stood still between its last check of the
// clock and its system call, a write of a virtual machine whose clock stood still with it, and a write that etcd holds
// longer than landTime. Resource versions guard against those: every object is patched only as it was read, so a write
// to an object that the next leader wrote since is refused. They do not guard an object that the next leader had no
// reason to write.
type leaderTerm struct {
	// renewed is the start of the last successful renewal.
	renewed atomic.Pointer[time.Time]

	mu sync.Mutex
	// settled is the time from which no write without an answer can land any more.
	settled time.Time
}

// termKey is the key of a context's term.
type termKey struct{}

// context returns a context whose writes belong to the term.
func (t *leaderTerm) context(parent context.Context) context.Context {
	return context.WithValue(parent, termKey{}, t)
}

// settledAt returns the time at which all writes have landed, if none begins any more.
func (t *leaderTerm) settledAt() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settled
}

// fencedTransport sends every write of a leader, unless its term is over. Requests without a term in their context
// pass, such as Events and the Lease itself.
type fencedTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (f fencedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	t, isLeader := r.Context().Value(termKey{}).(*leaderTerm)
	if !isLeader || r.Method == http.MethodGet {
		return f.next.RoundTrip(r)
	}

	deadline := t.renewed.Load().Add(writeTime)
	left := time.Until(deadline)
	err := r.Context().Err() // set if the term is over
	if err == nil && left < writeMargin {
		err = errLeaseLapsed
	}

	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // http.RoundTripper requires it
		}
		return nil, err
	}

	return t.write(r, f.next, deadline, left)
}

// write sends a write. A cancellation of its context does not end it: once it gets its answer it has landed, and
// another leader may follow at once.
func (t *leaderTerm) write(
	r *http.Request,
	next http.RoundTripper,
	deadline time.Time,
	left time.Duration,
) (*http.Response, error) {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(r.Context()), deadline)
	defer cancel()

	r = r.Clone(ctx)
	query := r.URL.Query()
	query.Set("timeout", left.String())
	r.URL.RawQuery = query.Encode()

	answer, err := next.RoundTrip(r)
	if err == nil {
		err = readBody(answer)
	}
	if err == nil && answer.StatusCode < http.StatusInternalServerError {
		return answer, nil
	}

	t.mu.Lock()
	t.settled = time.Now().Add(landTime)
	t.mu.Unlock()

	if err != nil {
		return nil, err
	}
	// With this header the client would repeat the write by itself. The refusal of the second write would hide that the
	// first one landed.
	answer.Header.Del("Retry-After")
	return answer, nil
}

// readBody reads the whole body of an answer into memory, so that the request's context may end.
func readBody(answer *http.Response) error {
	body, readErr := io.ReadAll(answer.Body)
	if err := errors.Join(readErr, answer.Body.Close()); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}

	answer.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}
