package k8s

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// sent is what a fence let pass.
type sent struct{ requests []*http.Request }

func (s *sent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.requests = append(s.requests, r)
	return failure(http.StatusOK, ""), nil
}

// busy answers with its code, and asks to be asked again.
type busy int

func (b busy) RoundTrip(*http.Request) (*http.Response, error) {
	answer := failure(int(b), "")
	answer.Header.Set("Retry-After", "1")
	return answer, nil
}

// TestFenceHidesRetryAfter: the client sends nothing again by itself after an answer that proves nothing. The refusal of
// the second write would hide that the first has landed.
func TestFenceHidesRetryAfter(t *testing.T) {
	for code, want := range map[int]string{http.StatusTooManyRequests: "1", http.StatusServiceUnavailable: "", http.StatusGatewayTimeout: ""} {
		term := &term{renewed: time.Now()}
		r, err := http.NewRequestWithContext(term.context(t.Context()), http.MethodPatch, "http://api/x", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := fence{busy(code)}.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Header.Get("Retry-After"); got != want {
			t.Errorf("%d: %q", code, got)
		}
	}
}

// TestFence: which requests of a leader pass, and how long they may take.
func TestFence(t *testing.T) {
	for name, tt := range map[string]struct {
		method  string
		age     time.Duration
		over    bool
		refused error
	}{
		"renewed just now":      {method: http.MethodPatch},
		"in time":               {method: http.MethodPost, age: writeTime - writeMargin},
		"too little time left":  {method: http.MethodPatch, age: writeTime - writeMargin + 1, refused: errLapsed},
		"lapsed":                {method: http.MethodDelete, age: time.Hour, refused: errLapsed},
		"decided in a term ago": {method: http.MethodPut, over: true, refused: context.Canceled},
		"a read":                {method: http.MethodGet, age: time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			started := time.Now()
			term := &term{renewed: started.Add(-tt.age)}
			ctx, cancel := context.WithCancel(term.context(t.Context()))
			defer cancel()
			if tt.over {
				cancel()
			}
			r, err := http.NewRequestWithContext(ctx, tt.method, "http://api/x?a=b", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			next := &sent{}
			_, err = fence{next}.RoundTrip(r)
			if !errors.Is(err, tt.refused) || (len(next.requests) == 0) != (tt.refused != nil) {
				t.Fatalf("%s: %v, %d sent", name, err, len(next.requests))
			}
			if tt.method == http.MethodGet || tt.refused != nil {
				return
			}
			deadline, _ := next.requests[0].Context().Deadline()
			query := next.requests[0].URL.Query()
			if want := writeTime - tt.age; deadline.Sub(started) != want || query.Get("timeout") != want.String() || query.Get("a") != "b" {
				t.Errorf("%s: ends after %v, query %v, want %v", name, deadline.Sub(started), query, want)
			}
		})
	}
}
