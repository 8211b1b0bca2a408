package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// dial opens a connection from an address, and reports whether a request on it was answered. It stays open.
func dial(t *testing.T, to, from string) (answered bool) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	line, err := bufio.NewReader(c).ReadString('\n')
	return err == nil && strings.Contains(line, "200")
}

// TestConnLimiter: connections that one address keeps open leave room for others, and descriptors for the process.
func TestConnLimiter(t *testing.T) {
	at := freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, at, Health(AlwaysHealthy, func() error { return nil }), nil) }()
	for {
		if c, err := net.Dial("tcp", at); err == nil {
			c.Close()
			break
		}
	}
	const one = 200
	kept := 0
	for range one {
		if dial(t, at, "127.0.0.2") {
			kept++
		}
	}
	if kept == 0 || kept > 20 {
		t.Errorf("of %d connections of one address %d are kept, want a few", one, kept)
	}
	if !dial(t, at, "127.0.0.3") {
		t.Error("another address is not served")
	}
	// However many addresses have all their connections open, the next address is served: a kubelet must reach /healthz.
	for i := range 50 {
		for range 20 {
			dial(t, at, fmt.Sprint("127.0.1.", i+1))
		}
	}
	if !dial(t, at, "127.0.0.4") {
		t.Error("a new address is not served once many others have all their connections open")
	}
	cancel()
	must(t, <-ended)
}

// pipes is a listener that accepts what is sent to it.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, errors.New("closed")
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestIdler: the connection of a client that sends nothing more, or reads nothing, is closed.
func TestIdler(t *testing.T) {
	for name, request := range map[string]string{
		"silent":         "",
		"half a request": "GET / HT",
		"half a body":    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
		"reads nothing":  "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				l := make(pipes, 1)
				l <- ours
				closed := make(chan struct{})
				s := newServer(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					_, _ = w.Write(make([]byte, 1<<20))
				}))
				s.ConnState = func(_ net.Conn, state http.ConnState) {
					if state == http.StateClosed {
						close(closed)
					}
				}
				go func() { _ = s.Serve(l) }()
				go func() { fmt.Fprint(theirs, request) }()
				if name != "reads nothing" {
					go func() { _, _ = io.Copy(io.Discard, theirs) }()
				}
				start := time.Now()
				select {
				case <-closed:
				case <-time.After(time.Hour):
					t.Error("still there after an hour")
				}
				if took := time.Since(start); took > 2*time.Minute {
					t.Errorf("closed after %v", took)
				}
				theirs.Close()
				close(l)
			})
		})
	}
}

// slow is a gatherer that takes a while.
type slow struct {
	times atomic.Int64
	takes time.Duration
}

const gathering = 100 * time.Millisecond

func (s *slow) Gather() ([]*dto.MetricFamily, error) {
	s.times.Add(1)
	time.Sleep(s.takes)
	return nil, nil
}

// TestScrapers: with any number of readers, metrics take a tenth of the time, and each reader is answered.
func TestScrapers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: gathering}
		h := Metrics(s, admit)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var answers atomic.Int64
		ask := func() {
			if code, _ := get(t, h, "/metrics"); code == http.StatusOK {
				answers.Add(1)
			}
		}
		for range 8 {
			go func() {
				for ctx.Err() == nil {
					ask()
				}
			}()
		}
		<-ctx.Done()
		if busy := time.Duration(s.times.Load()) * gathering; busy > time.Minute/9 {
			t.Errorf("gathered for %v of a minute", busy)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if answers.Load() != s.times.Load() {
			t.Errorf("%d answers of %d", answers.Load(), s.times.Load())
		}
		start := time.Now()
		if ask(); time.Since(start) > 2*gathering {
			t.Errorf("a single one waits for %v", time.Since(start))
		}
		time.Sleep(time.Minute) // the pause's goroutine ends in the bubble
	})
}

// TestTwoScrapers: on a machine so busy that metrics take seconds, two simultaneous readers have them within 10 s.
func TestTwoScrapers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Metrics(&slow{takes: 3 * time.Second}, admit)
		start := time.Now()
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { get(t, h, "/metrics") })
		}
		if both.Wait(); time.Since(start) > 10*time.Second {
			t.Errorf("the second waited for %v", time.Since(start))
		}
		time.Sleep(time.Minute) // the pause's goroutine ends in the bubble
	})
}

// TestStrangersToken: while the API server does not answer whose token it is, its bearer does not delay readers that
// were admitted before.
func TestStrangersToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Metrics(&slow{takes: gathering}, func(ctx context.Context, token string) int {
			if token == "admitted" {
				return http.StatusOK
			}
			<-ctx.Done()
			return http.StatusUnauthorized
		})
		get := func(token string) (status int) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, r)
			return answer.Code
		}

		for range maxConns {
			go get("anything")
		}
		synctest.Wait()
		start := time.Now()
		if status := get("admitted"); status != http.StatusOK || time.Since(start) > gathering {
			t.Errorf("%d after %v", status, time.Since(start))
		}
		time.Sleep(time.Minute) // the pause's goroutine ends in the bubble
	})
}
