package bgp

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

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
	return fmt.Sprintf("via %s path %s communities %s large %s", via, p.AsPath.String, p.Community.String, p.LargeCommunity.String)
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
