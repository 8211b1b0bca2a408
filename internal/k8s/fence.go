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
	// renewInterval is between the starts of two renewals of the Lease.
	renewInterval = 500 * time.Millisecond
	// renewTime is how long the API server may take for a renewal, or for any read or write of the Lease. A leader
	// whose writes take longer gets none done within writeTime.
	renewTime = time.Second
	// writeTime is how long after the start of its last successful renewal a leader may write.
	writeTime = 2 * time.Second
	// writeMargin must be left of writeTime for a write to begin.
	writeMargin = 100 * time.Millisecond
	// landTime is how long a write may take to reach etcd after its client gave it up, or the API server's own
	// deadline for it passed: the API server cancels it then, but etcd may already have it.
	landTime = 500 * time.Millisecond
)

// errLapsed: the Lease was not renewed in time, so another process may be about to take it.
var errLapsed = errors.New("not written: the Lease is not renewed")

// term is the time from taking the Lease until its loss. All writes of a leader belong to the term in which they
// were decided: they carry its context.
//
// A standby may take the Lease writeTime and landTime after the record that it read was written, and that was no
// earlier than the start of the renewal. Until then all writes of this term have landed or never will: none begins or
// goes on after writeTime by our clock, and the API server ends those of a client that is gone at the same time by its
// own. What can still come too late is a write of a process that stood still between its last look at the clock and its
// system call, of a virtual machine whose clock stood still with it, and one that etcd holds longer than landTime.
// Those meet the resource version: every object is patched only as it was read, and what the next leader wrote to an
// object since refuses the write. That does not guard an object that the next leader had no reason to write.
type term struct {
	// renewed is the start of the last successful renewal.
	renewed atomic.Pointer[time.Time]
	mu      sync.Mutex
	// landed is when no write that got no answer can land any more.
	landed time.Time
}

// termKey is the key of a context's term.
type termKey struct{}

func (t *term) context(parent context.Context) context.Context {
	return context.WithValue(parent, termKey{}, t)
}

// settled is when all writes will have landed, if none begins any more.
func (t *term) settled() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.landed
}

// fence is the gate through which every write of a leader goes. What has no term in its context, such as Events and
// the Lease itself, passes.
type fence struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (f fence) RoundTrip(r *http.Request) (*http.Response, error) {
	t, leads := r.Context().Value(termKey{}).(*term)
	if !leads || r.Method == http.MethodGet {
		return f.next.RoundTrip(r)
	}
	err := r.Context().Err()                    // the term is over
	deadline := t.renewed.Load().Add(writeTime) // of all writes
	left := time.Until(deadline)
	if err == nil && left < writeMargin {
		err = errLapsed
	}
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as every RoundTripper must
		}
		return nil, err
	}
	return t.write(r, f.next, deadline, left)
}

// write sends a write. Cancelling its context does not end it: a write that gets its answer has landed, and
// another leader may follow at once.
func (t *term) write(
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
	t.landed = time.Now().Add(landTime)
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	// The client would send it again by itself, and the refusal of the second write would hide that the first landed.
	answer.Header.Del("Retry-After")
	return answer, nil
}

// readBody reads an answer to its end, for which its request's context must stand.
func readBody(answer *http.Response) error {
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}
