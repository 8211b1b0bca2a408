package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// perConnection is what a connection may cost, in octets: the chart computes the limit of memory from it.
const perConnection = 405 << 10

// buffered is what the kernel keeps for the sockets of this namespace, in octets.
func buffered(t *testing.T) (sum int) {
	t.Helper()
	out, err := exec.Command("ss", "-tmnH").Output()
	must(t, err)
	memory := regexp.MustCompile(`skmem:\(r(\d+),rb\d+,t(\d+),tb\d+,f(\d+),w(\d+),`)
	for _, m := range memory.FindAllStringSubmatch(string(out), -1) {
		for _, text := range m[1:] {
			n, _ := strconv.Atoi(text)
			sum += n
		}
	}
	return sum
}

// TestSeatsFull: every seat is taken, and all connections of each are full, as both ends send and do not read. No
// worker is killed or started for that, and the memory is within the bound from which the chart computes the limit.
// When both ends of the connections have gone, each namespace serves new clients. If only the client has gone, HAProxy
// keeps what it has for the application until the idle time ends, and counts the connection as long.
func TestSeatsFull(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.2:80")
		flood := func(c net.Conn) {
			for block := make([]byte, 1<<20); ; {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		}
		ended := make(chan struct{})
		go nstest.ServeEach(n.listen("10.1.0.1:80"), func(c net.Conn) {
			go flood(c)
			<-ended
		})
		const share = 20
		var services []haproxy.Service
		for i := range maxSeats {
			namespace := in(fmt.Sprintf("n%d", i), nil)
			services = append(services, testService("full", uint16(31001+i), namespace, "10.1.0.1:80"),
				testService("other", uint16(32001+i), namespace, "10.1.0.2:80"))
		}
		p := newPodOf(t, share, services...)
		pids := func() string {
			var out []string
			for i := range maxSeats {
				text, err := p.agent.tenants[fmt.Sprintf("n%d", i)].talk(context.Background(), "show info")
				must(t, err)
				out = append(out, pidPattern.FindStringSubmatch(text)[1])
			}
			return fmt.Sprint(out)
		}
		before := pids()

		var open []net.Conn
		for i := range maxSeats * share {
			c, err := n.dial(fmt.Sprintf("10.0.0.%d", 10+i%hops), fmt.Sprintf("10.0.0.1:%d", 31001+i%maxSeats))
			must(t, err)
			defer c.Close()
			open = append(open, c)
			go flood(c)
		}
		const full = 300 << 10
		nstest.Until(t, 30*time.Second, "the buffers are full", func() bool { return buffered(t)/len(open) >= full })
		if each := buffered(t) / len(open); each > perConnection {
			t.Errorf("a connection has %d KiB of buffers in the kernel alone", each>>10)
		}
		if after := pids(); after != before {
			t.Errorf("workers were replaced: %s after %s", after, before)
		}

		for _, c := range open {
			c.Close()
		}
		close(ended)
		for i := range maxSeats {
			to := fmt.Sprintf("10.0.0.1:%d", 32001+i)
			nstest.Until(t, 20*time.Second, to, func() bool {
				_, _, err := n.ask("10.0.0.11", to)
				return err == nil
			})
		}
	})
}
