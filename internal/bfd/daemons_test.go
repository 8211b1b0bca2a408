package bfd

import (
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// daemon is a real router.
type daemon interface {
	// up returns whether its session with an address is up.
	up(address string) bool
	Restart()
	Signal(syscall.Signal)
}

// frr is FRRouting.
type frr struct{ *nstest.FRR }

// startFRR starts zebra, bfdd and other daemons.
func startFRR(t *testing.T, ns *nstest.NS, config string, others ...string) frr {
	t.Helper()
	daemons := [][]string{{"bfdd"}}
	for _, d := range others {
		daemons = append(daemons, []string{d})
	}
	return frr{nstest.StartFRR(t, ns, config, daemons...)}
}

// frrPeer is what FRR shows of a session.
type frrPeer struct {
	Peer, Status, Diagnostic string
	MultiHop                 bool
	Passive                  bool   `json:"passive-mode"`
	RemoteDiagnostic         string `json:"remote-diagnostic"`
	RemoteReceive            int    `json:"remote-receive-interval"`
	RemoteTransmit           int    `json:"remote-transmit-interval"`
	RemoteMultiplier         int    `json:"remote-detect-multiplier"`
}

func (f frr) peer(address string) frrPeer {
	var all []frrPeer
	f.ShowJSON("show bfd peers", &all)
	for _, p := range all {
		if p.Peer == address {
			return p
		}
	}
	return frrPeer{}
}

func (f frr) up(address string) bool { return f.peer(address).Status == "up" }

// bird is the BIRD Internet Routing Daemon.
type bird struct{ *nstest.BIRD }

func startBIRD(t *testing.T, ns *nstest.NS, config string) bird {
	t.Helper()
	return bird{nstest.StartBIRD(t, ns, config)}
}

// line is what BIRD shows of a session: address, interface, state, since, interval, timeout.
func (b bird) line(address string) []string {
	for l := range strings.Lines(b.Show("show bfd sessions")) {
		if f := strings.Fields(l); len(f) > 2 && f[0] == address {
			return f
		}
	}
	return nil
}

func (b bird) up(address string) bool {
	l := b.line(address)
	return l != nil && l[2] == "Up"
}
