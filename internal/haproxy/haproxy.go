// Package haproxy makes the configuration of the HAProxy of one namespace from the Services that proxies serve there,
// and commands for its running worker from changes of their endpoints.
//
//	services, clash := haproxy.Compile(all, endpoints, bounds)
//	state := haproxy.State{Engine: engine, Services: services}
//	config := state.Config()             // write config.Text, if config.Hash differs from the running worker's
//	commands := state.Commands(servers)  // otherwise send these to the worker
//
// The package is pure: its caller writes the files and uses the sockets. Only parsed numbers, enumerations, addresses
// and names that Kubernetes has checked may enter a line. A Service with anything else is left out.
package haproxy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// State is the desired state of the HAProxy of one namespace.
type State struct {
	Engine
	// Services are the Services that it serves.
	Services []Service
	// Internal are the addresses of nodes and pods, to which the source ranges of a Service with InternalAllowed do not
	// apply.
	Internal []netip.Prefix
}

// Engine has the settings of the HAProxy of a namespace. They do not depend on other namespaces.
type Engine struct {
	// Directory is the directory of the sockets and files.
	Directory string
	// Threads is the number of threads.
	Threads int
	// MaxConn bounds the connections. It is lowered to fit Files, since HAProxy would not start otherwise.
	MaxConn int
	// Files is the limit of open files.
	Files int
}

// Service is a Service as proxies serve it.
type Service struct {
	Key lb.Key
	// Addresses are its addresses, at most one of each family.
	Addresses []netip.Addr
	lb.Proxy
	lb.Access
	// Certificate is the digest of the pair with which TLS ends here; "" for no TLS.
	Certificate string
	Ports       []Port
}

// Port is a TCP port of a Service.
type Port struct {
	// Port is the port of the Service.
	Port uint16
	// Listen is the port on which the proxy listens.
	Listen uint16
	// Endpoints are ordered.
	Endpoints []netip.AddrPort
}

// namePattern matches the names that Kubernetes accepts for namespaces and Services.
var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// digestPattern matches the digest of a pair, or "".
var digestPattern = regexp.MustCompile(`^([0-9a-f]{32})?$`)

// isUsable reports whether the Service has nothing that must not enter a line. A Service that asks for TLS and has no
// pair is not usable, since nothing else may answer on its ports.
func (s Service) isUsable() bool {
	isNamed := namePattern.MatchString(s.Key.Namespace) && namePattern.MatchString(s.Key.Name)
	_, hasMethod := methods[s.Method]
	hasHeader := s.Header >= 0 && s.Header < len(headers)
	if !isNamed || !hasMethod || !hasHeader {
		return false
	}

	asksTLS := s.Secret != ""
	hasPair := s.Certificate != ""
	if asksTLS != hasPair || !digestPattern.MatchString(s.Certificate) {
		return false
	}

	return all(s.Addresses, isPlain) &&
		all(s.Allow, netip.Prefix.IsValid) &&
		all(s.Deny, netip.Prefix.IsValid) &&
		all(s.Ports, Port.isUsable)
}

// isUsable reports whether the port has nothing that must not enter a line.
func (p Port) isUsable() bool {
	if p.Port == 0 || p.Listen == 0 {
		return false
	}

	return all(p.Endpoints, func(e netip.AddrPort) bool {
		return e.Port() > 0 && isPlain(e.Addr())
	})
}

// all reports whether a predicate holds for all items of a list.
func all[T any](list []T, holds func(T) bool) bool {
	fails := func(t T) bool { return !holds(t) }
	return !slices.ContainsFunc(list, fails)
}

// isPlain reports whether an address is valid, without a zone, and not IPv4 in IPv6 form.
func isPlain(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6()
}

// listenerPattern begins with plain text, which Go finds seven times as fast as a line's start.
var listenerPattern = regexp.MustCompile(`\nlisten ([^:\n]+):([^:\n]+):([0-9]+)\n +bind [^ \n]*:([0-9]+)`)

// Frontends returns the ports on which a proxy with a configuration listens, by Service and its port.
func Frontends(config string) map[string]map[string]uint16 {
	out := map[string]map[string]uint16{}
	for _, m := range listenerPattern.FindAllStringSubmatch(config, -1) {
		service := m[1] + "/" + m[2]
		if out[service] == nil {
			out[service] = map[string]uint16{}
		}

		n, _ := strconv.ParseUint(m[4], 10, 16) // HAProxy accepts no other text
		out[service][m[3]] = uint16(n)
	}

	return out
}

// idBits is the number of bits of a server's id that HAProxy 2.6 hashes: it multiplies the id by 4096 in 32 bits
// (lb_chash.c).
const idBits = 20

// serverIDs returns a number for each server, made from its address and port: HAProxy hashes a server's id, and all
// proxies must agree. If two servers have one number, the later server gets the next free one.
func serverIDs(endpoints []netip.AddrPort) map[netip.AddrPort]uint32 {
	out := make(map[netip.AddrPort]uint32, len(endpoints))
	used := make(map[uint32]bool, len(endpoints))
	for _, e := range endpoints {
		sum := sha256.Sum256([]byte(e.String()))
		id := binary.BigEndian.Uint32(sum[:]) >> (32 - idBits)
		for id == 0 || used[id] {
			id = (id + 1) % (1 << idBits)
		}

		out[e] = id
		used[id] = true
	}

	return out
}

// maxConn returns the number of connections that fit the file limit. Each needs two files; listeners, checks, threads
// and pipes need more.
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

	fitting := (s.Files - other) / 2
	return max(4, min(s.MaxConn, fitting))
}

// moreChecked is the number of endpoints that a port may gain without a reload.
const moreChecked = 100

// Digest returns a digest of a text that is short enough for a word, and long enough to be unique.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// Lists returns the texts of the files of source ranges, by the names of the files.
func (s State) Lists() map[string]string {
	out := map[string]string{InternalFile: s.InternalList()}
	for _, service := range s.Services {
		for _, a := range service.Addresses {
			for _, list := range [][]netip.Prefix{service.Allow, service.Deny} {
				name, text := sourceFile(list, a)
				if text != "" {
					out[name] = text
				}
			}
		}
	}

	return out
}

// InternalList returns the text of InternalFile.
func (s State) InternalList() string { return lines(s.Internal) }

// sourceFile returns the name and text of the file of the ranges of an address's family. The name has the digest of the
// text: each configuration has its own files, and the ports of a Service share one.
func sourceFile(list []netip.Prefix, a netip.Addr) (name, text string) {
	isOther := func(p netip.Prefix) bool {
		return p.Addr().Is4() != a.Is4()
	}
	ofFamily := slices.DeleteFunc(slices.Clone(list), isOther)
	text = lines(ofFamily)
	return "list-" + Digest(text) + ".lst", text
}

// lines returns a text with each prefix once, on a line of its own.
func lines(prefixes []netip.Prefix) string {
	var out []string
	for _, p := range prefixes {
		if p.IsValid() && isPlain(p.Addr()) {
			out = append(out, p.Masked().String()+"\n")
		}
	}

	slices.Sort(out)
	return strings.Join(slices.Compact(out), "")
}

// PairFile returns the name of the file of a pair. It has the digest, so that each configuration has its own file.
func PairFile(digest string) string { return "pair-" + digest + ".pem" }

// milliseconds returns a time as HAProxy reads it, within the bounds that it accepts.
func milliseconds(d time.Duration) string {
	n := min(max(d.Milliseconds(), 1), math.MaxInt32)
	return strconv.FormatInt(n, 10) + "ms"
}

// count returns a number of checks within the bounds that HAProxy accepts.
func count(n int) string {
	return strconv.Itoa(min(max(n, 1), 1000))
}

// backend returns the name of a section, and of a backend in commands.
func backend(key lb.Key, port uint16) string {
	return key.Namespace + ":" + key.Name + ":" + strconv.Itoa(int(port))
}

// ParseBackend returns the namespace, the name and the port in the name of a section; nil for another section.
func ParseBackend(name string) []string {
	parts := strings.Split(name, ":")
	if len(parts) == 3 {
		return parts
	}
	return nil
}

// sorted returns the usable Services in order.
func (s State) sorted() []Service {
	out := slices.DeleteFunc(slices.Clone(s.Services), func(o Service) bool {
		return !o.isUsable()
	})
	slices.SortStableFunc(out, func(a, b Service) int {
		return a.Key.Compare(b.Key)
	})
	return out
}

// Bounds has the limits of the proxy's own pod and of the cluster.
type Bounds struct {
	// Families are the families that the pod has.
	Families []lb.Family
	// Own are ports on which the pod listens for other purposes.
	Own []uint16
	// Certificates are the digests of the pairs with which proxies terminate TLS, by Service.
	Certificates map[lb.Key]string
}

// Compile returns the Services that proxies serve. all are all Services, in order. clash are the ports on which the pod
// cannot listen for a Service, since they are in use for another one.
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
			continue // no node announces a refused Service, and it must not use up resources of its namespace
		}

		service := Service{
			Key:         s.Key,
			Addresses:   b.addresses(s.Addresses),
			Proxy:       *s.Proxy,
			Access:      s.Access,
			Certificate: b.Certificates[s.Key],
		}
		if len(service.Addresses) == 0 {
			continue
		}

		for _, p := range s.Ports {
			canListen := p.Protocol == "TCP" && p.NodePort > 0
			if !canListen {
				continue
			}

			if taken[p.NodePort] {
				clash = append(clash, p.NodePort)
				continue
			}

			taken[p.NodePort] = true
			service.Ports = append(service.Ports, Port{
				Port:      p.Port,
				Listen:    p.NodePort,
				Endpoints: endpoints[s.Key][p.Port],
			})
		}

		if len(service.Ports) > 0 && service.isUsable() {
			out = append(out, service)
		}
	}

	return out, clash
}

// addresses returns the first address of each family that the pod has.
func (b Bounds) addresses(all []netip.Addr) (out []netip.Addr) {
	for _, f := range b.Families {
		i := slices.IndexFunc(all, func(a netip.Addr) bool {
			return lb.FamilyOf(a) == f
		})
		if i >= 0 {
			out = append(out, all[i])
		}
	}

	return out
}
