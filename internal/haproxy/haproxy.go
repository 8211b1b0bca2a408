// Package haproxy turns the Services of one namespace that proxies serve into the configuration of its HAProxy, and
// changes of their endpoints into commands for its running worker. It is pure: who calls it writes files and talks to
// sockets. Only parsed numbers, enumerations, addresses and names that Kubernetes has checked enter a line; a Service
// with anything else is left out.
package haproxy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// State is what the proxies serve of one namespace, and how its HAProxy runs.
type State struct {
	Engine
	Services []Service
	// Internal are the addresses of nodes and pods, to which the source ranges of a Service with InternalAllowed do not
	// apply.
	Internal []netip.Prefix
}

// Engine is how the HAProxy of a namespace runs. Nothing of it depends on other namespaces.
type Engine struct {
	// Directory has the sockets and files.
	Directory string
	// Threads is the number of threads, and Files the file limit, to which MaxConn is lowered: HAProxy does not start
	// with more.
	Threads, MaxConn, Files int
}

// Service is what proxies serve of one Service.
type Service struct {
	Key lb.Key
	// Addresses, at most one of each family.
	Addresses []netip.Addr
	lb.Proxy
	lb.Access
	// Certificate is the digest of the pair with which TLS ends here; "" for no TLS.
	Certificate string
	Ports       []Port
}

// Port is a TCP port of a Service.
type Port struct {
	// Port of the Service, and Listen, on which the proxy listens.
	Port, Listen uint16
	// Endpoints are ordered.
	Endpoints []netip.AddrPort
}

// label is a name that Kubernetes gives to namespaces and Services.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// certificate is a digest of a pair, or none.
var certificate = regexp.MustCompile(`^([0-9a-f]{32})?$`)

// usable reports whether the Service has nothing that must not enter a line. Without a pair a Service that asks for TLS
// is not: on its ports nothing else may answer.
func (s Service) usable() bool {
	_, known := methods[s.Method]
	valid := func(p netip.Prefix) bool { return p.IsValid() }
	return label.MatchString(s.Key.Namespace) &&
		label.MatchString(s.Key.Name) &&
		known &&
		s.Header >= 0 &&
		s.Header < len(headers) &&
		certificate.MatchString(s.Certificate) && (s.Certificate == "") == (s.Secret == "") &&
		all(s.Addresses, plain) && all(s.Allow, valid) && all(s.Deny, valid) &&
		all(s.Ports, func(p Port) bool {
			return p.Port > 0 &&
				p.Listen > 0 &&
				all(p.Endpoints, func(e netip.AddrPort) bool {
					return e.Port() > 0 &&
						plain(e.Addr())
				})
		})
}

func all[T any](list []T, holds func(T) bool) bool {
	return !slices.ContainsFunc(list, func(t T) bool { return !holds(t) })
}

func plain(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }

// listener begins with plain text, which Go finds seven times as fast as a line's start.
var listener = regexp.MustCompile(`\nlisten ([^:\n]+):([^:\n]+):([0-9]+)\n +bind [^ \n]*:([0-9]+)`)

// Frontends are the ports on which a proxy with a configuration listens, by Service and its port.
func Frontends(config string) map[string]map[string]uint16 {
	out := map[string]map[string]uint16{}
	for _, m := range listener.FindAllStringSubmatch(config, -1) {
		service := m[1] + "/" + m[2]
		if out[service] == nil {
			out[service] = map[string]uint16{}
		}
		n, _ := strconv.ParseUint(m[4], 10, 16) // HAProxy takes no other
		out[service][m[3]] = uint16(n)
	}
	return out
}

// idBits are the bits of a server's id that HAProxy 2.6 hashes: it multiplies the id by 4096 in 32 bits (lb_chash.c).
const idBits = 20

// ids numbers servers by address and port: HAProxy hashes a server's id, and all proxies must agree. Of two servers
// with one number the later takes the next that is free.
func ids(endpoints []netip.AddrPort) map[netip.AddrPort]uint32 {
	out, used := make(map[netip.AddrPort]uint32, len(endpoints)), make(map[uint32]bool, len(endpoints))
	for _, e := range endpoints {
		sum := sha256.Sum256([]byte(e.String()))
		id := binary.BigEndian.Uint32(sum[:]) >> (32 - idBits)
		for id == 0 || used[id] {
			id = (id + 1) % (1 << idBits)
		}
		out[e], used[id] = id, true
	}
	return out
}

// maxConn is the connections that fit the file limit: each needs two files; listeners, checks, threads and pipes need
// more.
func (s State) maxConn() int {
	other := 300 + 20*s.Threads
	for _, service := range s.Services {
		for _, p := range service.Ports {
			other += 2
			if service.Monitor != nil {
				other += len(p.Endpoints) + moreChecked
			}
		}
	}
	return max(4, min(s.MaxConn, (s.Files-other)/2))
}

// moreChecked is how many more endpoints of a port may come without a reload.
const moreChecked = 100

// Digest is short enough for a word, and long enough not to meet another.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// Lists returns the files of source ranges, by name.
func (s State) Lists() map[string]string {
	out := map[string]string{InternalFile: s.InternalList()}
	for _, service := range s.Services {
		for _, list := range [][]netip.Prefix{service.Allow, service.Deny} {
			for _, a := range service.Addresses {
				if name, text := list4or6(list, a); text != "" {
					out[name] = text
				}
			}
		}
	}
	return out
}

// InternalList is the text of InternalFile.
func (s State) InternalList() string { return lines(s.Internal) }

// list4or6 returns the file of the ranges of an address's family. Its name is its digest: each configuration has its
// own, and the ports of a Service share one.
func list4or6(list []netip.Prefix, a netip.Addr) (name, text string) {
	other := func(p netip.Prefix) bool { return p.Addr().Is4() != a.Is4() }
	text = lines(slices.DeleteFunc(slices.Clone(list), other))
	return "list-" + Digest(text) + ".lst", text
}

// lines returns each prefix once, in a line.
func lines(prefixes []netip.Prefix) string {
	var out []string
	for _, p := range prefixes {
		if p.IsValid() && plain(p.Addr()) {
			out = append(out, p.Masked().String()+"\n")
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), "")
}

// PairFile is the file of a pair, which its digest names, so that each configuration has its own.
func PairFile(digest string) string { return "pair-" + digest + ".pem" }

// milliseconds bounds a time to what HAProxy takes.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(min(max(d.Milliseconds(), 1), 1<<31-1), 10) + "ms"
}

func count(n int) string { return strconv.Itoa(min(max(n, 1), 1000)) }

// backend is the name of a section, and of a backend in commands.
func backend(key lb.Key, port uint16) string {
	return key.Namespace + ":" + key.Name + ":" + strconv.Itoa(int(port))
}

// ParseBackend is the inverse of backend: namespace, name and port; nil for another section.
func ParseBackend(name string) []string {
	if parts := strings.Split(name, ":"); len(parts) == 3 {
		return parts
	}
	return nil
}

// sorted returns the Services, ordered, without those that are not usable.
func (s State) sorted() []Service {
	out := slices.DeleteFunc(slices.Clone(s.Services), func(o Service) bool { return !o.usable() })
	slices.SortStableFunc(out, func(a, b Service) int { return a.Key.Compare(b.Key) })
	return out
}

// Bounds are what the proxy's own pod and the cluster allow.
type Bounds struct {
	// Families that the pod has.
	Families []lb.Family
	// Own are ports on which the pod listens for other purposes.
	Own []uint16
	// Certificates are the digests of the pairs with which TLS ends, by Service.
	Certificates map[lb.Key]string
}

// Compile returns the Services that proxies serve, of all, which are ordered, and the numbers on which the pod cannot
// listen for one, as another has them.
func Compile(
	all []*lb.Service,
	endpoints map[lb.Key]map[uint16][]netip.AddrPort,
	b Bounds,
) (out []Service, clash []uint16) {
	taken := map[uint16]bool{}
	for _, p := range b.Own {
		taken[p] = true
	}
	for _, s := range all {
		if s.Proxy == nil || s.ProxyRefused {
			continue // no node announces what is refused: it must not cost what the bound of its namespace saves
		}
		service := Service{Key: s.Key, Proxy: *s.Proxy, Access: s.Access, Certificate: b.Certificates[s.Key]}
		for _, f := range b.Families {
			if i := slices.IndexFunc(s.Addresses, func(a netip.Addr) bool { return lb.FamilyOf(a) == f }); i >= 0 {
				service.Addresses = append(service.Addresses, s.Addresses[i])
			}
		}
		for _, p := range s.Ports {
			if p.Protocol != "TCP" || p.NodePort == 0 || len(service.Addresses) == 0 {
				continue
			}
			if taken[p.NodePort] {
				clash = append(clash, p.NodePort)
				continue
			}
			taken[p.NodePort] = true
			service.Ports = append(
				service.Ports,
				Port{Port: p.Port, Listen: p.NodePort, Endpoints: endpoints[s.Key][p.Port]},
			)
		}
		if len(service.Ports) > 0 && service.usable() {
			out = append(out, service)
		}
	}
	return out, clash
}
