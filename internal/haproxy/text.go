package haproxy

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// methods has the lines of each method. Hashes must be consistent: otherwise HAProxy accepts no new servers at run
// time, and each change moves all clients.
var methods = map[lb.Method][]string{
	lb.RoundRobin:       {"balance roundrobin"},
	lb.LeastConnections: {"balance leastconn"},
	lb.SourceIP:         {"balance source", consistent},
	lb.SourceIPPort:     {"balance hash src,concat(:,sess.port)", consistent},
}

// consistent is the line that makes a hash consistent.
const consistent = "hash-type consistent sdbm avalanche"

// headers has the argument of a server for each version of the PROXY header.
var headers = []string{"", "send-proxy", "send-proxy-v2"}

// Config is a configuration of HAProxy.
type Config struct {
	// Text is the content of the file. It has the servers, so that a restart begins with them.
	Text string
	// Hash is a digest of everything but the servers, which change without a reload. The running worker shows it as its
	// description.
	Hash string
}

// Config returns the configuration.
func (s State) Config() (c Config) {
	var fixed, text strings.Builder
	global := s.global()
	fixed.WriteString(global)

	for _, service := range s.sorted() {
		fixed.WriteString(service.serverArguments())
		rejects := service.rejects(s.Directory) // once for all ports: they may be long
		for _, p := range service.Ports {
			section := service.section(p, s, rejects)
			fixed.WriteString(section)
			text.WriteString(section)
			for _, server := range service.servers(p) {
				text.WriteString("  server " + server.name + " " + server.arguments + "\n")
			}
		}
	}

	c.Hash = Digest(fixed.String())
	c.Text = "global\n  description " + c.Hash + "\n" + global + text.String()
	return c
}

const (
	// clientBuffer is the size of the kernel's buffer for data to a client, in bytes. It is the largest buffer, since a
	// client may be far away. The kernel uses twice as much for its own bookkeeping.
	clientBuffer = 64 << 10
	// otherBuffer is the size of the other buffers of a connection.
	otherBuffer = 32 << 10
)

// global returns the part of the configuration that all Services share, without its first lines. The proxy's own parent
// process ends old workers. noreuseport: two HAProxies that share a port would share its clients.
func (s State) global() string {
	return fmt.Sprintf(`  maxconn %d
  nbthread %d
  noreuseport
  tune.sndbuf.client %d
  tune.rcvbuf.client %d
  tune.sndbuf.server %d
  tune.rcvbuf.server %d
  stats socket "${%s}" mode 600 level admin expose-fd listeners
  stats timeout 10s
  server-state-file %s
defaults
  load-server-state-from-file global
  retries 3
  option redispatch 1
backend %s
  stick-table type integer size 16 expire 1h store conn_cur
`, s.maxConn(), max(1, s.Threads), clientBuffer, otherBuffer, otherBuffer, otherBuffer,
		SocketVariable, path.Join(s.Directory, StatesFile), streams)
}

const (
	// SocketVariable is the variable of the environment that names a worker's socket for commands.
	SocketVariable = "HOLDFAST_SOCKET"
	// StatesFile is the file in Engine.Directory with the states of the servers.
	StatesFile = "states"
	// InternalFile is the file in Engine.Directory with State.Internal.
	InternalFile = "internal.lst"
)

// streams is a section without servers that counts requests of HTTP/2. One connection of a client may have many of
// them, each with a connection to an endpoint. No Service has this name.
const streams = "streams"

// section returns the section of a port of a Service, without its servers. Its listeners have the ids 1 for IPv4 and 2
// for IPv6, by which rules distinguish the families: HAProxy compares an IPv4 address with IPv6 ranges too, so that
// ::/0 would contain all IPv4 addresses. The name of a listener is the Service's address.
func (s Service) section(p Port, state State, rejects []string) string {
	var b strings.Builder
	line := func(words ...string) {
		b.WriteString("  " + strings.Join(words, " ") + "\n")
	}

	b.WriteString("listen " + backend(s.Key, p.Port) + "\n")
	listen := strconv.Itoa(int(p.Listen))
	tls := s.tls(state.Directory)
	for _, a := range s.Addresses {
		if a.Is4() {
			line("bind", "0.0.0.0:"+listen, "id 1 name "+a.String()+tls)
		} else {
			line("bind", "[::]:"+listen, "v6only id 2 name "+a.String()+tls)
		}
	}

	// The Service's address and port come first: headers and rules must not see the proxy's own.
	line("tcp-request connection set-dst so_name")
	line("tcp-request connection set-dst-port", "int("+strconv.Itoa(int(p.Port))+")")
	for _, l := range rejects {
		line(l)
	}

	if s.Method == lb.SourceIPPort {
		line("tcp-request connection set-var(sess.port) src_port")
	}

	s.writeMode(line, p, state.maxConn())
	for _, l := range methods[s.Method] {
		line(l)
	}

	return b.String()
}

// isHTTP reports whether proxies read the HTTP of the Service.
func (s Service) isHTTP() bool {
	terminatesTLS := s.Certificate != ""
	return s.HTTP || terminatesTLS && s.Header == 0
}

// tls returns the arguments of a listener that terminates TLS; "" for none.
func (s Service) tls(directory string) string {
	if s.Certificate == "" {
		return ""
	}

	words := " ssl crt " + path.Join(directory, PairFile(s.Certificate)) + " ssl-min-ver TLSv1.2"
	if s.isHTTP() {
		words += " alpn h2,http/1.1"
	}

	return words
}

// rejects returns the lines that enforce the source lists. The proxy enforces them too, because pods, and routers with
// routes to pods, bypass the filter.
func (s Service) rejects(directory string) (out []string) {
	if !s.HasRanges() {
		return nil
	}

	line := func(words ...string) {
		out = append(out, strings.Join(words, " "))
	}
	except := ""
	if s.InternalAllowed {
		line("acl own src -f", path.Join(directory, InternalFile))
		except = "!own"
	}

	for _, a := range s.Addresses {
		version, listener := "4", "{ so_id 1 }"
		if a.Is6() {
			version, listener = "6", "{ so_id 2 }"
		}

		acl := func(name string, list []netip.Prefix) string {
			file, text := sourceFile(list, a)
			if text == "" {
				return ""
			}

			line("acl", name+version, "src -f", path.Join(directory, file))
			return name + version
		}
		reject := func(condition string) {
			rule := "tcp-request connection reject if " + listener + " " + except + " " + condition
			line(strings.Fields(rule)...)
		}

		denied := acl("deny", s.Deny)
		if denied != "" {
			reject(denied)
		}

		allowed := acl("allow", s.Allow)
		switch {
		case !s.Restricted:
		case allowed == "":
			reject("")
		default:
			reject("!" + allowed)
		}
	}

	return out
}

// writeMode writes the mode of a section, TCP or HTTP, with its timeouts and checks.
func (s Service) writeMode(line func(...string), p Port, maxStreams int) {
	line("timeout client", milliseconds(s.Client))
	line("timeout server", milliseconds(s.Member))
	line("timeout connect", milliseconds(s.Connect))

	if s.Monitor != nil {
		line("timeout check", milliseconds(s.Monitor.Timeout))
	}

	if s.isHTTP() {
		s.writeHTTP(line, p, maxStreams)
		return
	}

	line("mode tcp")
	if s.Inspect > 0 {
		line("tcp-request inspect-delay", milliseconds(s.Inspect))
		line("tcp-request content accept if { req.len gt 0 }")
	}
}

// writeHTTP writes the mode of a section whose HTTP the proxy reads.
func (s Service) writeHTTP(line func(...string), p Port, maxStreams int) {
	line("mode http")
	// A client that sends its request byte by byte is idle too.
	line("timeout http-request", milliseconds(s.Client))
	if s.HTTP {
		line("option forwardfor")
	} else {
		line("http-request del-header X-Forwarded-For") // a client's header is not trustworthy
	}

	scheme := "http"
	if s.Certificate != "" {
		scheme = "https"
		line("http-request track-sc0 int(1) table", streams)
		line("http-request deny deny_status 503 if { sc0_conn_cur gt", strconv.Itoa(maxStreams), "}")
	}

	line("http-request set-header X-Forwarded-Proto", scheme)
	line("http-request set-header X-Forwarded-Port", strconv.Itoa(int(p.Port)))
	if s.Monitor != nil {
		line("option httpchk GET /")
		line("http-check expect status 200")
	}
}

// server is an endpoint of a port.
type server struct {
	name string
	id   uint32
	// arguments are the same in the file and in a command: a command does not use the defaults of the section.
	arguments string
}

// serverArguments returns the arguments that all servers of the Service have.
func (s Service) serverArguments() string {
	// Consistent hashing spreads by the number of points, 16 for each unit of weight.
	out := " weight 16"
	header := headers[s.Header]
	if header != "" {
		out += " " + header
	}

	m := s.Monitor
	if m != nil {
		out += " check inter " + milliseconds(m.Delay)
		out += " rise " + count(m.Rise) + " fall " + count(m.Fall)
	}

	return out
}

// servers returns a server of the backend for each endpoint of a port.
func (s Service) servers(p Port) (out []server) {
	common := s.serverArguments()
	ids := serverIDs(p.Endpoints)
	for _, e := range p.Endpoints {
		out = append(out, server{
			name:      e.Addr().String() + "_" + strconv.Itoa(int(e.Port())),
			id:        ids[e],
			arguments: fmt.Sprintf("%s id %d%s", e, ids[e], common),
		})
	}

	return out
}
