package bgp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/engine"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// These arguments make the test's program another one.
const (
	// engineArgument: an engine, which panics on SIGUSR1 as GoBGP would on a bad message.
	engineArgument = "bgp-engine"
	// speakerArgument: a speaker that reads its orders.
	speakerArgument = "bgp-speaker"
)

// testCommand is the Command of speakers in tests.
var testCommand = []string{os.Args[0], engineArgument}

func TestMain(m *testing.M) {
	switch {
	case slices.Contains(os.Args, engineArgument):
		if err := serveEngine(); err != nil {
			fmt.Fprintln(os.Stderr, "bgp:", err)
			os.Exit(1)
		}
	case slices.Contains(os.Args, speakerArgument):
		if err := serveSpeaker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

func serveEngine() error {
	order := make(chan os.Signal, 1)
	signal.Notify(order, syscall.SIGUSR1)
	go func() {
		<-order
		panic("a message of death")
	}()
	return engine.Serve()
}

// orders are the arguments of desire.
type orders struct {
	Peers  []lb.Peer
	Routes []lb.Route
}

func serveSpeaker() error {
	s := New(Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Kick: func() {}, Command: testCommand})
	var d orders
	if err := json.NewDecoder(os.Stdin).Decode(&d); err != nil {
		return err
	}
	s.Set(desire(d.Peers, d.Routes...))
	return s.Run(context.Background())
}

// realRouter is a router program in its own namespace.
type realRouter interface {
	// route returns the router's routes of a prefix, in one line; empty for none.
	route(prefix string) string
	// established is the number of sessions that are up.
	established() int
	// keeps reports whether the router keeps routes of a session that fell and that no End-of-RIB followed yet.
	keeps() bool
}

// frr is FRRouting: zebra and bgpd.
type frr struct{ *nstest.FRR }

// startFRR starts it, with arguments for bgpd.
func startFRR(t *testing.T, ns *nstest.NS, config string, bgpd ...string) frr {
	t.Helper()
	return frr{nstest.StartFRR(t, ns, config, append([]string{"bgpd"}, bgpd...))}
}

func (f frr) route(prefix string) string {
	type text struct{ String string }
	var answer struct {
		Paths []struct {
			AsPath                    text `json:"aspath"`
			Community, LargeCommunity text
			Nexthops                  []struct{ IP, Scope string }
		}
	}
	f.ShowJSON("show bgp "+family(prefix)+" unicast "+prefix, &answer)
	if len(answer.Paths) != 1 {
		return ""
	}
	p := answer.Paths[0]
	via := ""
	for _, hop := range p.Nexthops {
		if hop.Scope != "link-local" {
			via += hop.IP
		}
	}
	return fmt.Sprintf("via %s path %s communities %s large %s", via, p.AsPath.String, p.Community.String,
		p.LargeCommunity.String)
}

func (f frr) established() int {
	n := 0
	for _, family := range []string{"ipv4", "ipv6"} {
		var answer struct {
			Peers map[string]struct{ State string }
		}
		f.ShowJSON("show bgp "+family+" unicast summary", &answer)
		for _, p := range answer.Peers {
			if p.State == "Established" {
				n++
			}
		}
	}
	return n
}

func (f frr) keeps() bool {
	for _, family := range []string{"ipv4", "ipv6"} {
		if strings.Contains(f.Show("show bgp "+family+" unicast json"), `"stale":true`) {
			return true
		}
	}
	return false
}

func family(prefix string) string {
	if strings.Contains(prefix, ":") {
		return "ipv6"
	}
	return "ipv4"
}

// bird is the BIRD Internet Routing Daemon.
type bird struct{ *nstest.BIRD }

func startBIRD(t *testing.T, ns *nstest.NS, config string) bird {
	t.Helper()
	return bird{nstest.StartBIRD(t, ns, config)}
}

var birdAttribute = regexp.MustCompile(`BGP\.(as_path|next_hop|local_pref|community|large_community|med): ?(.*)`)

func (b bird) route(prefix string) string {
	out := b.Show("show route all for " + prefix)
	if !strings.Contains(out, prefix) {
		return ""
	}
	values := map[string]string{}
	for _, m := range birdAttribute.FindAllStringSubmatch(out, -1) {
		values[m[1]] = m[2]
	}
	via, _, _ := strings.Cut(values["next_hop"], " ") // without the link-local one
	return fmt.Sprintf("via %s path %s communities %s large %s preference %s",
		via, values["as_path"], values["community"], values["large_community"], values["local_pref"])
}

func (b bird) established() int { return strings.Count(b.Show("show protocols"), "Established") }

func (b bird) keeps() bool {
	return strings.Contains(b.Show("show protocols all"), "Neighbor graceful restart active")
}

// kernel watches the routes in a router's kernel.
type kernel struct {
	t       *testing.T
	ns      *nstest.NS
	mu      sync.Mutex
	deleted []string
	// awaited receive when a prefix appears.
	awaited map[string]chan time.Time
}

func watchKernel(t *testing.T, ns *nstest.NS) *kernel {
	t.Helper()
	k := &kernel{t: t, ns: ns, awaited: map[string]chan time.Time{}}
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	t.Cleanup(func() { close(done) })
	ns.Do(func() {
		// for thousands at once
		options := netlink.RouteSubscribeOptions{ReceiveBufferSize: 16 << 20, ReceiveBufferForceSize: true}
		if err := netlink.RouteSubscribeWithOptions(updates, done, options); err != nil {
			t.Fatalf("subscribe to routes: %v", err)
		}
	})
	go func() {
		for u := range updates {
			if u.Dst == nil {
				continue
			}
			k.mu.Lock()
			if prefix := u.Dst.String(); u.Type == unix.RTM_DELROUTE {
				k.deleted = append(k.deleted, prefix)
			} else if c := k.awaited[prefix]; c != nil {
				c <- time.Now()
				delete(k.awaited, prefix)
			}
			k.mu.Unlock()
		}
	}()
	return k
}

// await returns a channel that receives when a prefix appears.
func (k *kernel) await(prefix string) <-chan time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := make(chan time.Time, 1)
	k.awaited[prefix] = c
	return c
}

// has reports whether the kernel routes a prefix to a gateway.
func (k *kernel) has(prefix string) bool {
	k.t.Helper()
	routes, err := k.ns.Netlink().RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		k.t.Fatalf("list routes: %v", err)
	}
	return slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.String() == prefix })
}

// lost returns which of these prefixes ever vanished, however briefly.
func (k *kernel) lost(prefixes ...string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for _, d := range k.deleted {
		if slices.Contains(prefixes, d) {
			out = append(out, d)
		}
	}
	return out
}
