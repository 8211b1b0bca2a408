package egress

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestTranslate: connections of a pod leave with the address and a port of its node's slice, whoever gets the answers.
func TestTranslate(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		p := w.addPod(n, 2)
		nstest.Running(t, n.translator.Run)
		w.set()
		if faults := n.translator.Faults(); len(faults) > 0 {
			t.Fatal(faults)
		}
		for _, owner := range w.nodes {
			w.owner(owner)
			each(t, func(t *testing.T, network, to string) { w.translated(n, p.dial(t, network, to, echoPort)) })
			for _, to := range partners.all() {
				p.Output("ping", "-c", "1", "-W", "2", to)
			}
		}
		for _, family := range []string{"ip", "ip6"} {
			t.Log(n.list(family))
		}
	})
}

// TestBulk: large transfers and large datagrams arrive, past a router with a smaller MTU behind it.
func TestBulk(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		p := w.addPod(n, 2)
		w.set()
		for _, to := range partners.all() {
			c := p.dial(t, "tcp", to, bulkPort)
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			got, err := io.Copy(io.Discard, c)
			if err != nil || got != bulkSize {
				t.Errorf("%s: %d bytes, %v", to, got, err)
			}
			c = p.dial(t, "udp", to, bigPort)
			_ = c.SetDeadline(time.Now().Add(patient))
			_, err = c.Write([]byte("hello"))
			must(t, err)
			if n, err := c.Read(make([]byte, 2*bigSize)); err != nil || n != bigSize {
				t.Errorf("%s: datagram of %d bytes, %v", to, n, err)
			}
		}
	})
}

// TestClosed: new connections of a closed source are refused at once, and older ones go on.
func TestClosed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		p := w.addPod(n, 2)
		w.set()
		open4, open6 := p.dial(t, "tcp", partner4, echoPort), p.dial(t, "tcp", partner6, echoPort)
		w.translated(n, open4)
		w.translated(n, open6)
		p.closed = "CutOff"
		w.set()
		for _, to := range partners.all() {
			start := time.Now()
			_, err := p.try("tcp", to, echoPort, patient)
			if err == nil || !strings.Contains(err.Error(), "refused") {
				t.Errorf("%s: new connection: %v", to, err)
			}
			_, err = ask(p.dial(t, "udp", to, echoPort), patient)
			if err == nil || strings.Contains(err.Error(), "timeout") {
				t.Errorf("%s: new datagrams: %v", to, err)
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("%s: refused after %v", to, took)
			}
		}
		w.translated(n, open4)
		w.translated(n, open6)
	})
}
