package lb

import (
	"hash/fnv"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Proxy is how the proxies serve a Service.
type Proxy struct {
	// Header is the version of the PROXY protocol header that endpoints get before the bytes of a connection: 0 for
	// none, 1 or 2.
	Header int
	// HTTP: the proxies speak HTTP, and add the client's address to X-Forwarded-For.
	HTTP bool
	// Secret of the Service's namespace has the certificate with which TLS ends at the proxies; "" for none. Without a
	// header they then speak HTTP.
	Secret string
	// Method chooses the endpoint of a connection or request.
	Method Method
	// Client and Member bound the idle time of each side, Connect the wait for an endpoint; Inspect is how long the
	// proxies wait for a client's first bytes before they choose an endpoint, 0 for not at all.
	Client, Member, Connect, Inspect time.Duration
	// Monitor is how the proxies check endpoints; nil for not at all.
	Monitor *Monitor
}

// Method chooses endpoints. Its values are the names in OpenStack.
type Method string

// The methods of OpenStack.
const (
	RoundRobin       Method = "ROUND_ROBIN"
	LeastConnections Method = "LEAST_CONNECTIONS"
	SourceIP         Method = "SOURCE_IP"
	SourceIPPort     Method = "SOURCE_IP_PORT"
)

// Monitor is a health check of endpoints.
type Monitor struct {
	// Delay is the time between two checks, Timeout the wait for the answer.
	Delay, Timeout time.Duration
	// Rise is after how many good checks an endpoint serves again, Fall after how many bad ones it does not.
	Rise, Fall int
}

// ProxyPod is a pod of the proxies that serves.
type ProxyPod struct {
	Name string
	// Node that it runs on.
	Node string
	// Addresses, at most one of each family, IPv4 first.
	Addresses []netip.Addr
	// Ready: it takes new Services. A pod that is not ready terminates, and serves what still comes.
	Ready bool
	// Frontends has the ports of each Service that the pod serves, and where the pod listens for each. Only the speaker
	// of its node knows them: nil is unknown, and counts as all that a proxy should serve.
	Frontends map[Key]map[uint16]uint16
}

// Has reports whether the pod listens for a port of a Service, as far as this node knows. What it says is a hint: it
// may listen for the port at its node port only, which no other Service has.
func (p *ProxyPod) Has(s *Service, port Port) bool {
	return p.Frontends == nil || p.Frontends[s.Key][port.Port] == port.NodePort
}

// maxLacking bounds the namespaces that a node says it lacks.
const maxLacking = 20

// NamespaceHash stands for a namespace in what speakers send to each other.
func NamespaceHash(namespace string) uint32 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, namespace) // it does not fail
	return h.Sum32()
}

// Lacking returns the hashes, ordered, of the namespaces with proxied Services of which the proxies of a node serve
// none; nil if no proxy of it is ready.
func Lacking(services []*Service, pods []ProxyPod, node string) []uint32 {
	isHere := func(p ProxyPod) bool { return p.Node == node && p.Ready && p.Frontends != nil }
	if !slices.ContainsFunc(pods, isHere) {
		return nil
	}
	lacks := map[string]bool{}
	for _, s := range services {
		if s.Proxied {
			lacks[s.Key.Namespace] = true
		}
	}
	for _, p := range pods {
		if isHere(p) {
			for key, ports := range p.Frontends {
				if len(ports) > 0 {
					delete(lacks, key.Namespace)
				}
			}
		}
	}
	var out []uint32
	for _, namespace := range slices.Sorted(maps.Keys(lacks)) {
		if len(out) == maxLacking {
			break
		}
		out = append(out, NamespaceHash(namespace))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Diversion leads connections to a TCP port of an address to a proxy.
type Diversion struct {
	Address netip.Addr
	Port    uint16
	To      netip.AddrPort
	// Remote: the proxy runs on another node.
	Remote bool
}
