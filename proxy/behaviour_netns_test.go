package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// near fails the test if a time differs from what was computed by more than five in a hundred.
func near(t *testing.T, what string, took, want time.Duration) {
	t.Helper()
	if off := took - want; off < -want/20 || off > want/20 {
		t.Errorf("%s: %s, want %s ± 5 %%", what, took, want)
	}
}

// web serves HTTP at an address of a pod.
func (n *network) web(address string, serve http.HandlerFunc) {
	l := n.listen(address)
	go func() { _ = http.Serve(l, serve) }() // it ends with the listener
}

// door is the pod's own address for a client.
func door(from string, port int) string {
	if strings.Contains(from, ":") {
		return fmt.Sprintf("[fd00::1]:%d", port)
	}
	return fmt.Sprintf("10.0.0.1:%d", port)
}

// An idle connection ends when the shorter time of client and member is over, and one with traffic does not.
func TestIdle(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.1:80")
		n.web("10.1.0.1:8080", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w) })
		const short, long = 4 * time.Second, 20 * time.Second
		idle := func(client, member time.Duration, web bool) func(*haproxy.Service) {
			return func(s *haproxy.Service) { s.Client, s.Member, s.HTTP = client, member, web }
		}
		newPod(t, testService("client", 31001, idle(short, long, false), "10.1.0.1:80"),
			testService("member", 31002, idle(long, short, false), "10.1.0.1:80"),
			testService("web", 31003, idle(short, long, true), "10.1.0.1:8080"))
		var group sync.WaitGroup
		for _, from := range []string{"10.0.0.10", "fd00::10"} {
			for port, line := range map[int]string{
				31001: "hello\n", 31002: "hello\n", 31003: "GET / HTTP/1.1\r\nHost: shop\r\n\r\n",
			} {
				c, err := n.dial(from, door(from, port))
				must(t, err)
				group.Go(func() {
					defer c.Close()
					r := bufio.NewReader(c)
					for range 6 { // for longer than the time
						fmt.Fprint(c, line)
						if _, err := r.ReadString('\n'); err != nil {
							t.Errorf("a connection with traffic ended: %v", err)
						}
						_ = c.SetReadDeadline(time.Now().Add(short / 5))
						_, _ = io.Copy(io.Discard, r)
						_ = c.SetReadDeadline(time.Time{})
					}
					fmt.Fprint(c, line)
					last := time.Now()
					_, _ = io.Copy(io.Discard, r)
					near(t, fmt.Sprintf("idle from %s at port %d", from, port), time.Since(last), short)
				})
			}
		}
		group.Wait()
	})
}

// Connections spread as each method promises.
func TestDistribution(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		all := n.four()
		method := func(m lb.Method) func(*haproxy.Service) { return func(s *haproxy.Service) { s.Method = m } }
		newPod(t, testService("turns", 31001, method(lb.RoundRobin), all...),
			testService("least", 31002, method(lb.LeastConnections), all...),
			testService("port", 31003, method(lb.SourceIPPort), all...))
		ask := func(port, times int) map[string]int {
			share := map[string]int{}
			for i := range times {
				from := []string{"10.0.0.10", "fd00::10"}[i%2]
				answer, _, err := n.ask(from, door(from, port))
				must(t, err)
				share[answer]++
			}
			return share
		}
		for to, got := range ask(31001, 80) {
			if got != 20 {
				t.Errorf("in turns: %s has %d of 80", to, got)
			}
		}
		share := ask(31003, 400)
		for _, to := range all { // four standard deviations, and as much for the unevenness of 256 points each
			if share[to] < 50 || share[to] > 150 {
				t.Errorf("by source and port: %s has %d of 400", to, share[to])
			}
		}

		open := map[string][]net.Conn{}
		keep := func() {
			c, err := n.dial("10.0.0.10", "10.0.0.1:31002")
			must(t, err)
			t.Cleanup(func() { c.Close() })
			fmt.Fprintln(c, "hello")
			answer, err := bufio.NewReader(c).ReadString('\n')
			must(t, err)
			to := strings.TrimSpace(answer)
			open[to] = append(open[to], c)
		}
		for range 12 {
			keep()
		}
		for _, to := range all {
			if len(open[to]) != 3 {
				t.Errorf("least connections: %s has %d of 12", to, len(open[to]))
			}
		}
		for _, c := range open[all[2]] {
			c.Close()
		}
		open[all[2]] = nil
		nstest.Until(t, 5*time.Second, "the next three go where there are none", func() bool {
			keep()
			return len(open[all[2]]) == 3
		})
		for _, to := range all {
			if len(open[to]) > 4 { // the first of the three may come before the end of those that were closed
				t.Errorf("least connections: %s has %d, where %s had none", to, len(open[to]), all[2])
			}
		}
	})
}

// endpointUp returns whether the running worker takes an endpoint for alive.
func (p *pod) endpointUp(name, endpoint string) bool {
	p.Helper()
	text, err := p.tenant().talk(context.Background(), "show servers state shop:"+name+":443")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 6 && f[3] == endpoint {
			return f[5] == "2"
		}
	}
	p.Fatal(text, err)
	return false
}

// A hung endpoint gets no connections after the time that the monitor's settings give, and gets them again after its
// time. A flapping one changes state only after as many equal answers in a row as the settings want.
func TestMonitor(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		var hangs atomic.Bool
		var checks atomic.Int64
		n.web("10.1.0.1:8080", func(_ http.ResponseWriter, r *http.Request) {
			if checks.Add(1); hangs.Load() {
				<-r.Context().Done()
			}
		})
		answers := make(chan int) // of the flapping one, in order
		done := make(chan struct{})
		defer close(done)
		n.web("10.1.0.2:8080", func(w http.ResponseWriter, _ *http.Request) {
			select {
			case status := <-answers:
				w.WriteHeader(status)
			case <-done:
			}
		})
		// HAProxy may let a check hang for the delay, unless connections have less time than the check.
		const connect = 100 * time.Millisecond
		monitor := lb.Monitor{Delay: 500 * time.Millisecond, Timeout: 300 * time.Millisecond, Rise: 2, Fall: 3}
		patient := monitor
		patient.Timeout, patient.Delay = time.Minute, 20*time.Millisecond // the test has its answers in its own time
		web := func(m *lb.Monitor) func(*haproxy.Service) {
			return func(s *haproxy.Service) { s.HTTP, s.Monitor, s.Connect = true, m, connect }
		}
		p := newPod(t, testService("hung", 31001, web(&monitor), "10.1.0.1:8080"),
			testService("flaps", 31002, web(&patient), "10.1.0.2:8080"))

		nstest.Until(t, 10*time.Second, "a good check: before it one failure is enough", func() bool {
			return checks.Load() > 1
		})
		// The first check begins within the delay, the next ones a delay after the end of the one before.
		const slack = 200 * time.Millisecond
		for _, turn := range []struct {
			hangs           bool
			atLeast, within time.Duration
		}{
			{true, 2*monitor.Delay + 3*monitor.Timeout, 3*monitor.Delay + 3*monitor.Timeout},
			{false, monitor.Delay, 2*monitor.Delay + monitor.Timeout},
		} {
			hangs.Store(turn.hangs)
			start := time.Now()
			nstest.Until(t, 10*time.Second, fmt.Sprintf("an endpoint that hangs: %t", turn.hangs), func() bool {
				return p.endpointUp("hung", "10.1.0.1_8080") != turn.hangs
			})
			if took := time.Since(start); took < turn.atLeast-slack || took > turn.within+slack {
				t.Errorf("hangs %t: noticed after %s, want %s to %s", turn.hangs, took, turn.atLeast, turn.within)
			}
		}

		up := true
		for i, status := range []int{200, 500, 500, 200, 500, 500, 200, 500, 500, 500, 200, 500, 200, 500, 200, 200} {
			answers <- status
			switch i {
			case 9: // the third in a row
				up = false
			case 15: // the second in a row
				up = true
			}
			nstest.Until(t, 5*time.Second, fmt.Sprintf("answer %d, %d: up is %t", i, status, up), func() bool {
				return p.endpointUp("flaps", "10.1.0.2_8080") == up
			})
		}
		if got, _, err := n.ask("10.0.0.10", "10.0.0.1:31001"); err != nil || !strings.Contains(got, "400") {
			t.Errorf("a line that is no request: %q %v", got, err)
		}
	})
}

// A client that sends its request octet by octet, or does not read, ends after the client's time, and delays no other.
func TestSlowClients(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.web("10.1.0.1:8080", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w) })
		var last, ended time.Time
		poured := make(chan bool)
		l := n.listen("10.1.0.1:80")
		go nstest.ServeEach(l, func(c net.Conn) { // it sends for as long as it can
			defer close(poured)
			block := make([]byte, 64<<10)
			for {
				if _, err := c.Write(block); err != nil {
					break
				}
				last = time.Now()
			}
			ended = time.Now()
		})
		const limit = 4 * time.Second
		slow := func(s *haproxy.Service) { s.Client = limit }
		newPod(t, testService("web", 31001, func(s *haproxy.Service) {
			slow(s)
			s.HTTP = true
		}, "10.1.0.1:8080"), testService("pours", 31002, slow, "10.1.0.1:80"))

		var group sync.WaitGroup
		for i := range hops {
			from := []string{fmt.Sprintf("10.0.0.%d", 10+i), fmt.Sprintf("fd00::%d", 10+i)}[i%2]
			c, err := n.dial(from, door(from, 31001))
			must(t, err)
			start := time.Now()
			fmt.Fprint(c, "G") // the request begins
			stop := make(chan struct{})
			group.Go(func() {
				tick := time.NewTicker(limit / 20)
				defer tick.Stop()
				for _, octet := range []byte("ET /" + strings.Repeat("a", 1000)) {
					select {
					case <-tick.C:
						_, _ = c.Write([]byte{octet})
					case <-stop:
						return
					}
				}
			})
			group.Go(func() {
				defer c.Close()
				defer close(stop)
				_ = c.SetReadDeadline(start.Add(3 * limit))
				text, _ := io.ReadAll(c)
				near(t, "octet by octet", time.Since(start), limit)
				if !strings.HasPrefix(string(text), "HTTP/1.1 408 ") && !strings.HasPrefix(string(text), "HTTP/1.0 408 ") {
					t.Errorf("a slow request got %q", text)
				}
			})
		}
		start := time.Now()
		deaf, err := n.dial("10.0.0.10", "10.0.0.1:31002")
		must(t, err)
		defer deaf.Close()
		var times []time.Duration
		for range 100 {
			start := time.Now()
			c, err := n.dial("fd00::49", "[fd00::1]:31001")
			must(t, err)
			fmt.Fprint(c, "GET / HTTP/1.0\r\n\r\n")
			if text, err := io.ReadAll(c); err != nil || !strings.Contains(string(text), " 200 ") {
				t.Errorf("beside slow clients: %q %v", text, err)
			}
			c.Close()
			times = append(times, time.Since(start))
		}
		if slices.Sort(times); times[len(times)/2] > 100*time.Millisecond {
			t.Errorf("beside slow clients an answer takes %s", times[len(times)/2])
		}
		group.Wait()
		<-poured
		// Its time begins after it came, and before the last that the pod could send: what is on the way goes on for a while.
		if ended.Sub(start) < limit*95/100 || ended.Sub(last) > limit*105/100 {
			t.Errorf("a client that does not read: %s after it came, %s after the last, want %s ± 5 %%", ended.Sub(start),
				ended.Sub(last), limit)
		}
	})
}
