package haproxy

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// methods are the lines of each method. A hash is consistent: otherwise HAProxy takes no new servers at run time, and
// each change moves all clients.
var methods = map[lb.Method][]string{
	lb.RoundRobin:       {"balance roundrobin"},
	lb.LeastConnections: {"balance leastconn"},
	lb.SourceIP:         {"balance source", consistent},
	lb.SourceIPPort:     {"balance hash src,concat(:,sess.port)", consistent},
}

const consistent = "hash-type consistent sdbm avalanche"

// headers are the words of a server, by the version of the header.
var headers = []string{"", "send-proxy", "send-proxy-v2"}

// Config is a configuration of HAProxy.
type Config struct {
	// Text is the file. It has the servers, so that a restart begins with them.
	Text string
	// Hash is of all but the servers, which change without a reload. The running worker shows it as its description.
	Hash string
}

// Config returns the configuration.
func (s State) Config() (c Config) {
	var fixed, text strings.Builder
	global := s.global()
	fixed.WriteString(global)
	for _, service := range s.sorted() {
		fixed.WriteString(service.words())
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

// What the kernel keeps for a connection, in octets; it takes twice as much for its own bookkeeping. The largest buffer
// is of what it sends to a client, who may be far away.
const (
	toClient    = 64 << 10
	otherBuffer = 32 << 10
)

// global is the part that all Services share, without its first lines. Workers have a parent of ours, which ends old
// ones. Two HAProxies that may share a port would share its clients.
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
`, s.maxConn(), max(1, s.Threads), toClient, otherBuffer, otherBuffer, otherBuffer,
		SocketVariable, path.Join(s.Directory, StatesFile), streams)
}

const (
	// SocketVariable is the variable of the environment that names a worker's socket for commands.
	SocketVariable = "HOLDFAST_SOCKET"
	// StatesFile is in Engine.Directory, as InternalFile, which has State.Internal.
	StatesFile   = "states"
	InternalFile = "internal.lst"
)

// streams is a section without servers that counts requests of HTTP/2, of which one connection of a client may have
// many, each with a connection to an endpoint. No Service has its name.
const streams = "streams"

// section is a port of a Service without its servers. Its listeners have the ids 1 for IPv4 and 2 for IPv6, by which
// rules tell the families apart: HAProxy compares an IPv4 address with IPv6 ranges too, so that ::/0 contains all of
// them. The name of a listener is the Service's address.
func (s Service) section(p Port, of State, rejects []string) string {
	var b strings.Builder
	line := func(words ...string) { b.WriteString("  " + strings.Join(words, " ") + "\n") }
	b.WriteString("listen " + backend(s.Key, p.Port) + "\n")
	listen, tls := strconv.Itoa(int(p.Listen)), s.tls(of.Directory)
	for _, a := range s.Addresses {
		if a.Is4() {
			line("bind", "0.0.0.0:"+listen, "id 1 name "+a.String()+tls)
		} else {
			line("bind", "[::]:"+listen, "v6only id 2 name "+a.String()+tls)
		}
	}
	// The Service's address and port first: headers and rules must not see the proxy's own.
	line("tcp-request connection set-dst so_name")
	line("tcp-request connection set-dst-port", "int("+strconv.Itoa(int(p.Port))+")")
	for _, l := range rejects {
		line(l)
	}
	if s.Method == lb.SourceIPPort {
		line("tcp-request connection set-var(sess.port) src_port")
	}
	s.mode(line, p, of.maxConn())
	for _, l := range methods[s.Method] {
		line(l)
	}
	return b.String()
}

func (s Service) http() bool { return s.HTTP || s.Certificate != "" && s.Header == 0 }

// tls are the words of a listener where TLS ends.
func (s Service) tls(directory string) string {
	if s.Certificate == "" {
		return ""
	}
	words := " ssl crt " + path.Join(directory, PairFile(s.Certificate)) + " ssl-min-ver TLSv1.2"
	if s.http() {
		words += " alpn h2,http/1.1"
	}
	return words
}

// rejects are the lines of the source lists again: pods, and routers with routes to pods, reach the proxy past the
// filter.
func (s Service) rejects(directory string) (out []string) {
	if !s.HasRanges() {
		return nil
	}
	line := func(words ...string) { out = append(out, strings.Join(words, " ")) }
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
			file, text := list4or6(list, a)
			if text == "" {
				return ""
			}
			line("acl", name+version, "src -f", path.Join(directory, file))
			return name + version
		}
		reject := func(condition string) {
			line(strings.Fields("tcp-request connection reject if " + listener + " " + except + " " + condition)...)
		}
		if name := acl("deny", s.Deny); name != "" {
			reject(name)
		}
		switch name := acl("allow", s.Allow); {
		case !s.Restricted:
		case name == "":
			reject("")
		default:
			reject("!" + name)
		}
	}
	return out
}

// mode is TCP or HTTP with its times and check.
func (s Service) mode(line func(...string), p Port, maxStreams int) {
	line("timeout client", milliseconds(s.Client))
	line("timeout server", milliseconds(s.Member))
	line("timeout connect", milliseconds(s.Connect))
	if s.Monitor != nil {
		line("timeout check", milliseconds(s.Monitor.Timeout))
	}
	if !s.http() {
		line("mode tcp")
		if s.Inspect > 0 {
			line("tcp-request inspect-delay", milliseconds(s.Inspect))
			line("tcp-request content accept if { req.len gt 0 }")
		}
		return
	}
	line("mode http")
	// A client that sends its request octet by octet is idle too.
	line("timeout http-request", milliseconds(s.Client))
	if s.HTTP {
		line("option forwardfor")
	} else {
		line("http-request del-header X-Forwarded-For") // it would stand beside true headers
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
	// arguments are the same in the file and in a command: HAProxy takes no defaults of the section for the latter.
	arguments string
}

// words are the settings of each server of the Service.
func (s Service) words() string {
	// Consistent hashing spreads by the number of points, 16 for each unit of weight.
	words := " weight 16"
	if h := headers[s.Header]; h != "" {
		words += " " + h
	}
	if m := s.Monitor; m != nil {
		words += " check inter " + milliseconds(m.Delay) + " rise " + count(m.Rise) + " fall " + count(m.Fall)
	}
	return words
}

// servers returns a server of the backend for each endpoint of a port.
func (s Service) servers(p Port) (out []server) {
	words, numbers := s.words(), ids(p.Endpoints)
	for _, e := range p.Endpoints {
		out = append(out, server{
			name: e.Addr().String() + "_" + strconv.Itoa(int(e.Port())), id: numbers[e],
			arguments: fmt.Sprintf("%s id %d%s", e, numbers[e], words),
		})
	}
	return out
}
