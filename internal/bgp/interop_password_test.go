package bgp

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// signed are the configurations of the lab's routers with one password for all sessions.
func signed(password string) (frr, bird string) {
	frr = strings.ReplaceAll(frrConfig, "remote-as 4200000000\n", "remote-as 4200000000\n neighbor PEER password "+password+"\n")
	frr = strings.Replace(frr, "PEER", "192.0.2.1", 1)
	frr = strings.Replace(frr, "PEER", "2001:db8:1::1", 1)
	return frr, strings.ReplaceAll(birdConfig, "as 65000; ipv", "as 65000; password \""+password+"\"; ipv")
}

// since returns when each session came up.
func since(s *Speaker) map[string]time.Time {
	out := map[string]time.Time{}
	for _, session := range s.Sessions() {
		if session.State == lb.Established {
			out[session.Peer] = session.Since
		}
	}
	return out
}

// Sessions are signed (RFC 2385). A wrong password keeps its session down and is suspected in words; a new one opens its
// session again and disturbs no other.
func TestInteropPassword(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		l := newLabOf(t, first(signed("First-1")), second(signed("First-1")))
		for _, p := range []*lb.Peer{&l.frr4, &l.frr6, &l.bird4, &l.bird6} {
			p.Password = "First-1"
		}
		s, _ := run(t)
		set(t, s, desire(l.peers(), l.routes()...))
		l.up(t)
		established(t, s, "frr4", "frr6", "bird4", "bird6")
		before := since(s)

		for _, tt := range []struct {
			peer   *lb.Peer
			next   lb.Secret
			change func()
		}{
			{&l.frr4, "Second-2", func() { l.frr.Configure("router bgp 65001", "neighbor 192.0.2.1 password Second-2") }},
			{&l.frr6, "Second-2", func() { l.frr.Configure("router bgp 65001", "neighbor 2001:db8:1::1 password Second-2") }},
			{&l.bird4, "Second 2", func() {
				l.bird.Configure(strings.Replace(second(signed("First-1")), "First-1", "Second 2", 1))
			}},
			{&l.bird6, "Second 2", func() { l.bird.Configure(second(signed("Second 2"))) }},
		} {
			name := tt.peer.Name
			tt.peer.Password = tt.next
			set(t, s, desire(l.peers(), l.routes()...))
			await(t, name, "cannot connect: i/o timeout; kernels drop what bears a wrong signature: the router may have another password, or none",
				func() string { return session(s, name).LastError })
			tt.change()
			nstest.Until(t, patience, name+" is up again", func() bool { return session(s, name).State == lb.Established })
			after := since(s)
			for other, at := range before {
				if other != name && !after[other].Equal(at) {
					t.Errorf("the new password of %s opened %s again", name, other)
				}
			}
			before = after
		}
		l.up(t)
	})
}

func first(a, _ string) string  { return a }
func second(_, b string) string { return b }
