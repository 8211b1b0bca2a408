package liveness

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// fabric is an owner, w2, and a watcher, w1, on a switch. The owner's speaker runs until stop is called.
type fabric struct {
	owner, watcher, bridge *nstest.NS
	speaker                *layer2.Responder
	stop                   func()
	wire                   *wire
	// now is the watcher's time.
	now time.Time
}

var keys = [][]byte{bytes.Repeat([]byte{7}, 32)}

// addresses that the owner announces.
var addresses = []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")}

func newFabric(t *testing.T, address netip.Addr) *fabric {
	f := &fabric{owner: nstest.Self(t), watcher: nstest.New(t), bridge: nstest.New(t)}
	nstest.Veth(t, f.owner, "eth0", f.bridge, "port0")
	nstest.Veth(t, f.watcher, "eth0", f.bridge, "port1")
	t.Cleanup(func() { f.owner.Delete("eth0") })
	f.bridge.Bridge("br0", "port0", "port1")
	f.owner.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64", "fe80::2/64")
	f.watcher.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
	f.speaker = responder(f.owner, "192.0.2.2/24", "2001:db8::2/64", "fe80::2/64")
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- f.speaker.Run(ctx) }()
	f.stop = func() { stop(); <-ran; ran <- nil }
	t.Cleanup(f.stop)
	f.speaker.Set(layer2.Desired{Announcements: []lb.Announcement{{Address: addresses[0]}, {Address: addresses[1]}}})

	asker := responder(f.watcher, "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
	f.setKeys(t, f.speaker, keys)
	f.setKeys(t, asker, keys)
	f.wire = newWire(asker, func() []lb.Interface {
		return []lb.Interface{eth0(f.watcher, "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")}
	})
	f.now = time.Now()
	f.wire.now = func() time.Time { return f.now }
	f.wire.set(map[string]lb.Member{"w2": {Links: []lb.Link{{
		Name: "eth0", MAC: eth0(f.owner).MAC, Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64"), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
	}}}}, map[string]bool{"w2": true}, map[netip.Addr]string{address: "w2"}, netip.MustParseAddr("192.0.2.1"))
	return f
}

func eth0(ns *nstest.NS, of ...string) lb.Interface {
	a := ns.Link("eth0").Attrs()
	return lb.Interface{Index: a.Index, Name: a.Name, MAC: lb.MACFrom(a.HardwareAddr), Up: true, Prefixes: prefixes(of...)}
}

func responder(ns *nstest.NS, of ...string) *layer2.Responder {
	return layer2.New(layer2.Config{Log: quiet, Links: func() []lb.Interface { return []lb.Interface{eth0(ns, of...)} }})
}

func (f *fabric) setKeys(t *testing.T, r *layer2.Responder, keys [][]byte) {
	t.Helper()
	if err := r.SetKeys(keys); err != nil {
		t.Fatal(err)
	}
}

// ask returns what the watcher makes of the owner.
func (f *fabric) ask() (is heartbeat.Reply) {
	f.watcher.Do(func() { is = f.wire.ask("w2").Node })
	return is
}

// try makes the watcher try the owner's echo until trials show what they show: that it gets through or does not.
func (f *fabric) try(t *testing.T, echoes bool) {
	t.Helper()
	nstest.Until(t, 30*time.Second, "trials", func() bool {
		f.watcher.Do(func() { f.wire.tryEchoes(t.Context()) })
		f.now = f.now.Add(retrialInterval)
		return f.wire.echoesOf("w2") == echoes && (len(f.wire.withoutEcho()) == 0) == echoes
	})
}

// proxy makes the switch answer for the owner's addresses.
func (f *fabric) proxy(option string) {
	mac := f.owner.MAC("eth0").String()
	f.bridge.Output("ip", "link", "set", "dev", "port0", "type", "bridge_slave", option, "on")
	f.bridge.Output("bridge", "fdb", "replace", mac, "dev", "port0", "master", "static")
	for _, a := range addresses {
		f.bridge.Output("ip", "neigh", "replace", a.String(), "lladdr", mac, "dev", "br0", "nud", "permanent")
	}
}

// impersonate makes a kernel answer for the owner's addresses by its MAC: as a switch does that answers for others, by
// ARP as by Neighbor Discovery, whatever it is asked.
func (f *fabric) impersonate() {
	f.owner.Output("ip", "address", "add", addresses[0].String()+"/32", "dev", "eth0")
	f.owner.Output("ip", "address", "add", addresses[1].String()+"/128", "dev", "eth0", "nodad")
}

// each runs a test with an owner of an address of each family.
func each(t *testing.T, test func(t *testing.T, f *fabric)) {
	nstest.Run(t, func(t *testing.T) {
		for _, address := range addresses {
			t.Run(address.String(), func(t *testing.T) { test(t, newFabric(t, address)) })
		}
	})
}

func (f *fabric) want(t *testing.T, what string, want heartbeat.Reply) {
	t.Helper()
	// A busy machine may be late to answer, which is asked again; nobody answers for the dead even once.
	if want == heartbeat.Answered {
		nstest.Until(t, 30*time.Second, what, func() bool { return f.ask() == want })
	}
	if got := f.ask(); want == heartbeat.Silent && got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// A switch that answers for others keeps no dead owner alive, and no live one is mistaken for it.
func TestSwitchThatAnswers(t *testing.T) {
	for _, by := range []string{"proxy_arp_wifi", "neigh_suppress", "another kernel"} {
		t.Run(by, func(t *testing.T) {
			each(t, func(t *testing.T, f *fabric) {
				f.try(t, true)
				if by != "another kernel" {
					f.proxy(by)
				}
				f.want(t, "alive", heartbeat.Answered)
				f.stop()
				if by == "another kernel" {
					f.impersonate()
				}
				f.want(t, "dead", heartbeat.Silent)
			})
		})
	}
}

// A fabric that drops the echo, or a speaker that has none: ARP and Neighbor Discovery decide.
func TestWithoutEcho(t *testing.T) {
	for _, why := range []string{"dropped", "older speaker"} {
		t.Run(why, func(t *testing.T) {
			each(t, func(t *testing.T, f *fabric) {
				if why == "dropped" {
					f.try(t, true)
					f.bridge.Output("nft", "add table bridge t; add chain bridge t c { type filter hook forward priority 0; }; add rule bridge t c ether type 0x88b5 drop")
				} else {
					f.setKeys(t, f.speaker, nil)
				}
				f.try(t, false)
				f.want(t, "alive", heartbeat.Answered)
				f.stop()
				f.want(t, "dead", heartbeat.Silent)
			})
		})
	}
}
